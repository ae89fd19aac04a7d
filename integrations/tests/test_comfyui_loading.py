"""Loaders by policy in a real ComfyUI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import graphs
import pytest
from comfyui import PromptFailed, Server


def _loaded(server: Server, kind: str, parts: tuple[str, ...], **inputs: Any) -> tuple[dict[str, Any], str]:
    """The models that a loader loads, and its record."""
    built = graphs.Builder()
    name, _ = built.add(kind, at="loaded", **inputs)
    places = {"model": 0, "clip": 1, "vae": 2}
    built.add("TestDigest", at="digest", **{part: (name, places[part]) for part in parts})
    if kind.startswith("Tilewright"):
        built.add("TestShow", at="record", text=(name, 3 if "Checkpoint" in kind else 1))
    result = server.run(built.graph)
    [shown] = result.texts("digest")
    return json.loads(shown), result.texts("record")[0] if "record" in result.outputs else ""


def _governed(**given: Any) -> dict[str, Any]:
    return {"force_reload": False, "allow_lossy": False, **graphs.policy(**given)}


def test_a_checkpoint_is_what_the_core_node_loads(server: Server) -> None:
    file = {"ckpt_name": "checkpoint.safetensors"}
    own, _ = _loaded(server, "CheckpointLoaderSimple", ("model", "clip", "vae"), **file)
    governed, record = _loaded(server, "TilewrightCheckpoint", ("model", "clip", "vae"), **file, **_governed())
    assert own["model"]["tensors"] > 10
    assert governed == own
    assert json.loads(record)["plan"]["precision"]["dtype"] == "f32"


def test_a_diffusion_model_is_what_the_core_node_loads(server: Server) -> None:
    file = {"unet_name": "transformer.safetensors"}
    own, _ = _loaded(server, "UNETLoader", ("model",), **file, weight_dtype="default")
    governed, _ = _loaded(server, "TilewrightDiffusionModel", ("model",), **file, **_governed())
    assert governed == own


def test_weights_are_kept_in_fp8_only_if_they_may_be(server: Server) -> None:
    file = {"unet_name": "transformer.safetensors"}
    fixed = {"policy": "fixed", "settings": "options=weight-dtype=f8-e4m3"}
    own, _ = _loaded(server, "UNETLoader", ("model",), **file, weight_dtype="fp8_e4m3fn")
    lossy = {**_governed(**fixed), "allow_lossy": True}
    governed, record = _loaded(server, "TilewrightDiffusionModel", ("model",), **file, **lossy)
    assert "torch.float8_e4m3fn" in governed["model"]["dtypes"]
    assert governed == own
    assert json.loads(record)["plan"]["options"] == [["weight-dtype", "f8-e4m3"]]
    kept, _ = _loaded(server, "TilewrightDiffusionModel", ("model",), **file, **_governed(**fixed))
    assert kept["model"]["dtypes"] == ["torch.float32"]


@pytest.mark.parametrize("lora", ["merged", "beside"])
def test_a_lora_changes_samples_as_the_core_node_does(server: Server, lora: str) -> None:
    from safetensors.torch import load_file

    def sample(kind: str, name: str, **inputs: Any) -> Any:
        graph = graphs.guided(name)
        graph["lora"] = {
            "class_type": kind,
            "inputs": {
                "model": ["1", 0], "lora_name": "lora.safetensors", "strength_model": 0.8, **inputs,
            },
        }  # fmt: skip
        graph["sampled"]["inputs"]["model"] = ["lora", 0]
        server.run(graph)
        return load_file(server.output(name))["values"]

    governed = {"allow_lossy": False, **graphs.policy(policy="fixed", settings=f"options=lora={lora}")}
    own = sample("LoraLoaderModelOnly", "own")
    mine = sample("TilewrightLora", "mine", strength_clip=1.0, **governed)
    server.run(graphs.guided("plain"))
    plain = load_file(server.output("plain"))["values"]
    assert float((own - plain).abs().max()) > 1e-2
    difference = float((own - mine).abs().max() / own.abs().max())
    assert difference == 0 if lora == "merged" else difference <= 1e-4


def test_a_file_is_read_once_as_long_as_it_is_in_use(server: Server) -> None:
    def load(**inputs: Any) -> int:
        before = server.log().count("loaded already: the file has not changed")
        _loaded(server, "TilewrightCheckpoint", ("model", "vae"), ckpt_name="checkpoint.safetensors", **inputs)
        return server.log().count("loaded already: the file has not changed") - before

    assert load(**_governed()) == 0
    # Another input runs the node again, and the file is not read.
    assert load(**_governed(objective="leanest")) == 1
    assert load(**{**_governed(objective="leanest"), "force_reload": True}) == 0


def test_compatibility_mode_computes_in_f32(server: Server) -> None:
    settings = {"policy": "fixed", "settings": "options=compatibility=true"}
    _, record = _loaded(
        server, "TilewrightDiffusionModel", ("model",), unet_name="transformer.safetensors", **_governed(**settings)
    )
    assert json.loads(record)["plan"]["options"] == [["compatibility", True]]


def test_a_gguf_file_needs_its_pack_and_one_line_says_so(server: Server) -> None:
    file = server.base / "models" / "diffusion_models" / "small.gguf"
    file.write_bytes(b"GGUF")
    try:
        with pytest.raises(PromptFailed) as raised:
            _loaded(server, "TilewrightDiffusionModel", ("model",), unet_name=Path(file).name, **_governed())
        [message] = raised.value.messages
        assert "ComfyUI-GGUF" in message
        assert "\n" not in message
    finally:
        file.unlink()
