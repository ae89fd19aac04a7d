"""The engine's nodes in a real ComfyUI: the core nodes' outputs, cancels, kills, a server, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import comfyui
import comfyui_models
from graphs import Builder, Graph, Link, decode, encode, policy

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ROOT / "examples" / "models" / "flux-shapes"
TINY = ROOT / "examples" / "models" / "flux-tiny" / "ae.safetensors"
PROGRAM = os.environ.get("TILEWRIGHT_PROGRAM", str(ROOT / "target" / "debug" / "tilewright"))

#: VAEs of real widths with the shapes of a latent and of pictures.
VAES = {
    "sdxl": ("1,4,12,16", "2,72,88,3"),
    "flux": ("1,16,12,16", "1,64,96,3"),
    "wan": ("1,16,2,8,10", "5,64,80,3"),
    "wan-22": ("1,48,2,4,6", "5,64,96,3"),
}

#: Seconds that a cancel may take on a machine that has other work, too.
CANCELLED = 6.0

#: Seconds that an engine has for its end after its owner's.
LEFT = 60.0

pytestmark = pytest.mark.skipif(
    comfyui.source() is None or not Path(PROGRAM).is_file(), reason="needs ComfyUI's sources and the program"
)


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, comfyui_model: Callable[[str], Path]
) -> Iterator[comfyui.Server]:
    base = tmp_path_factory.mktemp("engine")
    (base / "private").mkdir()
    places = {f"vae/{kind}.safetensors": comfyui_model(kind) for kind in VAES}
    places |= {
        "vae/tiny.safetensors": TINY,
        "diffusion_models/transformer.safetensors": comfyui_model("transformer"),
        "diffusion_models/expert.safetensors": comfyui_model("expert"),
        "loras/style/one.safetensors": comfyui_model("lora"),
        "diffusers/flux-shapes": SHAPES,
    }
    started = comfyui.Server(
        base,
        packs={"tilewright": comfyui.PACK, "tests": comfyui.TEST_NODES},
        models=places,
        environment={"TMPDIR": str(base / "private"), "XDG_CONFIG_HOME": str(base / "config"), "TILEWRIGHT_SERVER": ""},
        threads=1,
    )
    yield started
    started.stop()
    # Neither the engine, which sees the end of its owner, nor a file of its or of ours is left.
    end = time.monotonic() + LEFT
    while engines(started) and time.monotonic() < end:
        time.sleep(0.1)
    # PyTorch has a folder of its own there.
    left = [path for path in (base / "private").iterdir() if not path.name.startswith("torchinductor")]
    assert not engines(started) and not left


def engines(server: comfyui.Server) -> list[int]:
    """Engines of this ComfyUI: the program serves in a private folder below its own for temporary files."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if b"--private" in command and any(os.fsencode(server.base) in part for part in command) and state != "Z":
            found.append(int(folder.name))
    return found


def saved(server: comfyui.Server, name: str) -> torch.Tensor:
    return load_file(server.output(name))["values"]


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    assert one.shape == other.shape
    return float((one - other).abs().max())


def on_engine(kind: str, **inputs: Any) -> dict[str, Any]:
    more = {} if kind == "TilewrightSample" else {"allow_blended": False}
    return {"class_type": kind, "inputs": {**policy(), **more, **inputs}}


def generate(name: str, **inputs: Any) -> Graph:
    """A picture of a prompt, saved with its record."""
    given: dict[str, Any] = {
        "model": "diffusers: flux-shapes", "prompt": "a red circle on a blue square", "negative_prompt": "",
        "width": 96, "height": 64, "frames": 0, "batch_size": 1, "seed": 7, "steps": 2, "cfg": -1.0, "guidance": -1.0,
        "sampler_name": "(the model's own)", "scheduler": "(the model's own)", "denoise": 1.0,
        "text_encoder_1": "(in the model)", "text_encoder_2": "(in the model)", "vae": "(in the model)", **inputs,
    }  # fmt: skip
    built = Builder()
    built.graph["make"] = on_engine("TilewrightGenerate", **given)
    built.add("TestSave", name=name, image=("make", 0))
    built.add("TestShow", at="record", text=("make", 1))
    return built.graph


@pytest.mark.parametrize("kind", VAES)
def test_a_decode_equals_the_core_node(server: comfyui.Server, kind: str) -> None:
    shape, _ = VAES[kind]
    server.run(decode(f"{kind}.safetensors", shape, "core"))
    built = Builder()
    latent = built.add("TestLatent", shape=shape, seed=1)
    built.graph["engine"] = on_engine("TilewrightDecode", samples=list(latent), vae=f"{kind}.safetensors")
    built.add("TestSave", name="ours", image=("engine", 0))
    built.add("TestShow", at="record", text=("engine", 1))
    result = server.run(built.graph)
    assert difference(saved(server, "ours"), saved(server, "core")) < 1e-4
    record = json.loads(result.texts("record")[0])
    assert record["stage"] == "decode" and record["outcome"]["peak_bytes"] > 0
    # No name of a file is told, neither to policies nor in the record.
    assert "safetensors" not in json.dumps(record)


@pytest.mark.parametrize("kind", VAES)
def test_an_encode_equals_the_core_node(server: comfyui.Server, kind: str) -> None:
    _, shape = VAES[kind]
    server.run(encode(f"{kind}.safetensors", shape, "core"))
    built = Builder()
    image = built.add("TestImage", shape=shape, seed=1)
    built.graph["engine"] = on_engine("TilewrightEncode", pixels=list(image), vae=f"{kind}.safetensors")
    built.add("TestSave", name="ours", latent=("engine", 0))
    server.run(built.graph)
    core = saved(server, "core")
    assert difference(saved(server, "ours"), core) < 1e-4 * float(core.abs().max())


def test_a_limit_on_memory_is_kept(server: comfyui.Server) -> None:
    built = Builder()
    latent = built.add("TestLatent", shape="1,4,32,32", seed=1)
    built.graph["engine"] = on_engine(
        "TilewrightDecode", samples=list(latent), vae="sdxl.safetensors", memory_limit="120 MiB"
    )
    built.add("TestSave", name="ours", image=("engine", 0))
    built.add("TestShow", at="record", text=("engine", 1))
    record = json.loads(server.run(built.graph).texts("record")[0])
    assert record["request"]["memory_limit"] == 120 * 2**20 >= record["outcome"]["peak_bytes"]
    assert record["plan"]["space"]["kind"] == "exact"
    server.run(decode("sdxl.safetensors", "1,4,32,32", "core"))
    assert difference(saved(server, "ours"), saved(server, "core")) < 1e-4


def sampling(server: comfyui.Server, name: str, *, on_core: bool, **inputs: Any) -> torch.Tensor:
    """A sample of the small transformer, by the core node or by the engine."""
    given: dict[str, Any] = {
        "seed": 3, "steps": 3, "cfg": 2.5, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0, **inputs,
    }  # fmt: skip
    lora, mask, start = given.pop("lora", False), given.pop("mask", False), given.pop("start", "1,16,2,8,10")
    built = Builder()
    positive = built.add("TestConditioning", tokens=20, width=comfyui_models.TEXT_WIDTH, seed=1)
    negative = built.add("TestConditioning", tokens=20, width=comfyui_models.TEXT_WIDTH, seed=2)
    if start == "empty":
        latent: Link = built.add("EmptyLatentImage", width=80, height=64, batch_size=1)
    else:
        latent = built.add("TestLatent", shape=start, seed=4, scale=0.3 if given["denoise"] < 1.0 else 0.0)
    if mask:
        half = built.add("SolidMask", value=1.0, width=40, height=64)
        whole = built.add("SolidMask", value=0.0, width=80, height=64)
        joined = built.add("MaskComposite", destination=whole, source=half, x=0, y=0, operation="add")
        latent = built.add("SetLatentNoiseMask", samples=latent, mask=joined)
    if on_core:
        model = built.add("UNETLoader", unet_name="transformer.safetensors", weight_dtype="default")
        if lora:
            model = built.add("LoraLoaderModelOnly", model=model, lora_name="style/one.safetensors", strength_model=0.7)
        made = built.add("KSampler", model=model, positive=positive, negative=negative, latent_image=latent, **given)
    else:
        if lora:
            given |= {"lora_1": "style/one.safetensors", "strength_1": 0.7}
        built.graph["engine"] = on_engine(
            "TilewrightSample",
            model="transformer.safetensors",
            positive=list(positive),
            negative=list(negative),
            latent_image=list(latent),
            **given,
        )
        made = ("engine", 0)
    built.add("TestSave", name=name, latent=made)
    server.run(built.graph)
    return saved(server, name)


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"cfg": 1.0},
        {"denoise": 0.6, "sampler_name": "dpmpp_2m", "scheduler": "beta"},
        {"denoise": 0.6, "mask": True},
        {"lora": True},
        {"start": "empty"},
    ],
    ids=["guided", "unguided", "denoise", "masked", "lora", "empty latent"],
)
def test_a_sample_equals_the_core_node(server: comfyui.Server, case: dict[str, Any]) -> None:
    core = sampling(server, "core", on_core=True, **case)
    ours = sampling(server, "ours", on_core=False, **case)
    assert difference(ours, core) < 1e-4 * float(core.abs().max())


def test_two_experts_sample_as_two_core_nodes_in_turn(server: comfyui.Server) -> None:
    built = Builder()
    positive = built.add("TestConditioning", tokens=20, width=comfyui_models.TEXT_WIDTH, seed=1)
    negative = built.add("TestConditioning", tokens=20, width=comfyui_models.TEXT_WIDTH, seed=2)
    given: dict[str, Any] = {"steps": 4, "cfg": 2.5, "sampler_name": "euler", "scheduler": "simple"}
    begun = built.add("TestLatent", shape="1,16,2,8,10", seed=4, scale=0.0)
    # With a shift of 8 the fourth sigma is the first below 0.875, where WAN 2.2 changes its expert.
    latent = begun
    for file, first, last in (("transformer", 0, 3), ("expert", 3, 10000)):
        model = built.add("UNETLoader", unet_name=f"{file}.safetensors", weight_dtype="default")
        latent = built.add(
            "KSamplerAdvanced",
            model=built.add("ModelSamplingSD3", model=model, shift=8.0),
            positive=positive,
            negative=negative,
            latent_image=latent,
            noise_seed=3,
            start_at_step=first,
            end_at_step=last,
            add_noise="enable" if first == 0 else "disable",
            return_with_leftover_noise="enable" if first == 0 else "disable",
            **given,
        )
    built.add("TestSave", name="core", latent=latent)
    built.graph["engine"] = on_engine(
        "TilewrightSample",
        model="transformer.safetensors",
        low_noise_model="expert.safetensors",
        positive=list(positive),
        negative=list(negative),
        latent_image=list(begun),
        seed=3,
        shift=8.0,
        denoise=1.0,
        **given,
    )
    built.add("TestSave", name="ours", latent=("engine", 0))
    server.run(built.graph)
    core = saved(server, "core")
    assert difference(saved(server, "ours"), core) < 1e-4 * float(core.abs().max())
    alone = sampling(server, "alone", on_core=False, steps=4, shift=8.0)
    assert difference(alone, core) > 1e-2 * float(core.abs().max())


def test_a_lora_changes_the_sample(server: comfyui.Server) -> None:
    plain = sampling(server, "plain", on_core=False)
    assert difference(plain, sampling(server, "changed", on_core=False, lora=True)) > 1e-3


def test_a_prompt_becomes_a_picture(server: comfyui.Server) -> None:
    result = server.run(generate("picture"))
    picture = saved(server, "picture")
    assert picture.shape == (1, 64, 96, 3) and float(picture.std()) > 0.05
    stages = [stage["stage"] for stage in json.loads(result.texts("record")[0])["stages"]]
    assert stages[-2:] == ["denoise", "decode"]
    # The seed says what comes out, and the prompt is in no record.
    server.run(generate("again", seed=8))
    assert difference(picture, saved(server, "again")) > 0.05
    assert "blue square" not in result.texts("record")[0]
    assert "blue square" not in (server.base / "history.jsonl").read_text()


def test_a_picture_to_begin_with_stays_where_the_mask_is_black(server: comfyui.Server) -> None:
    graph = generate("inpainted", denoise=0.9, steps=4)
    built = Builder()
    built.graph = graph
    image = built.add("TestImage", at="image", shape="1,64,96,3", seed=2)
    half = built.add("SolidMask", at="half", value=1.0, width=48, height=64)
    whole = built.add("SolidMask", at="whole", value=0.0, width=96, height=64)
    mask = built.add("MaskComposite", at="mask", destination=whole, source=half, x=0, y=0, operation="add")
    graph["make"]["inputs"] |= {"image": list(image), "mask": list(mask)}
    built.graph["latent"] = on_engine("TilewrightEncode", pixels=list(image), vae="tiny.safetensors")
    built.graph["back"] = on_engine("TilewrightDecode", samples=["latent", 0], vae="tiny.safetensors")
    built.add("TestSave", at="save", name="kept", image=("back", 0))
    server.run(graph)
    made, kept = saved(server, "inpainted"), saved(server, "kept")
    # Far from the border the kept half is what the VAE makes of the picture; the other half is made anew.
    right, left = (made - kept)[:, :, 80:].abs().mean(), (made - kept)[:, :, :32].abs().mean()
    assert float(right) < 0.02 < 0.05 < float(left)


def test_what_the_engine_can_not_do_is_refused_in_one_line(server: comfyui.Server) -> None:
    built = Builder()
    one = built.add("TestConditioning", tokens=8, width=comfyui_models.TEXT_WIDTH, seed=1)
    two = built.add("ConditioningSetArea", conditioning=one, width=64, height=64, x=0, y=0, strength=1.0)
    both = built.add("ConditioningCombine", conditioning_1=one, conditioning_2=two)
    latent = built.add("TestLatent", shape="1,16,1,8,8", seed=1)
    sampled = {
        "model": "transformer.safetensors", "latent_image": list(latent), "seed": 1, "steps": 1, "cfg": 1.0,
        "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0,
    }  # fmt: skip
    for positive, words in ((both, "it combines 2 conditionings"), (two, "does not know its area")):
        built.graph["engine"] = on_engine("TilewrightSample", positive=list(positive), **sampled)
        built.graph["save"] = {"class_type": "TestSave", "inputs": {"name": "", "latent": ["engine", 0]}}
        with pytest.raises(comfyui.PromptFailed, match=words) as error:
            server.run(built.graph)
        assert "\n" not in error.value.messages[0]
    wrong = generate("none", memory_limit="much")
    with pytest.raises(comfyui.PromptFailed, match="memory limit: expected a number of bytes"):
        server.run(wrong)
    with pytest.raises(comfyui.PromptFailed, match="channels") as error:
        built = Builder()
        latent = built.add("TestLatent", shape="1,4,8,8", seed=1)
        built.graph["engine"] = on_engine("TilewrightDecode", samples=list(latent), vae="flux.safetensors")
        built.add("TestSave", name="", image=("engine", 0))
        server.run(built.graph)
    assert "\n" not in error.value.messages[0]


def await_steps(server: comfyui.Server, prompt: str) -> None:
    """Waits until a prompt's job is at work."""
    server.wait_until_running(prompt)
    until = time.monotonic() + 60
    while not engines(server):
        assert time.monotonic() < until, "the engine does not start"
        time.sleep(0.05)
    time.sleep(1.0)


def cancelled_after(server: comfyui.Server, prompt: str) -> float:
    begun = time.monotonic()
    server.interrupt()
    with pytest.raises(comfyui.Interrupted):
        server.wait(prompt)
    return time.monotonic() - begun


def test_a_cancel_ends_the_job_and_leaves_the_engine(server: comfyui.Server) -> None:
    server.run(generate("before", seed=20))
    (pid,) = engines(server)
    prompt = server.queue(generate("long", width=512, height=512, steps=2000, seed=21))
    await_steps(server, prompt)
    assert cancelled_after(server, prompt) < 2.0
    assert engines(server) == [pid]
    server.run(generate("after", seed=22))
    assert engines(server) == [pid]


def test_an_engine_that_does_not_answer_is_ended_by_a_cancel(server: comfyui.Server) -> None:
    prompt = server.queue(generate("long", width=512, height=512, steps=2000, seed=31))
    await_steps(server, prompt)
    (pid,) = engines(server)
    os.kill(pid, signal.SIGSTOP)
    assert cancelled_after(server, prompt) < CANCELLED
    until = time.monotonic() + 10
    while pid in engines(server):
        assert time.monotonic() < until, "the engine is left"
        time.sleep(0.05)
    server.run(generate("after", seed=32))
    assert saved(server, "after").shape == (1, 64, 96, 3)


def test_a_killed_engine_is_a_line_and_the_next_run_starts_another(server: comfyui.Server) -> None:
    prompt = server.queue(generate("long", width=512, height=512, steps=2000, seed=41))
    await_steps(server, prompt)
    (pid,) = engines(server)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(comfyui.PromptFailed) as error:
        server.wait(prompt)
    (line,) = error.value.messages
    assert "ended by signal SIGKILL" in line and "queue the workflow again" in line and "\n" not in line
    server.run(generate("after", seed=42))
    (new,) = engines(server)
    assert new != pid
    # The job that was killed does not go on in the new engine, whose only job was the last one.
    assert not [path for path in (server.base / "private").glob("tilewright-comfyui-*")]


def test_the_memory_node_ends_the_engine(server: comfyui.Server) -> None:
    server.run(generate("before", seed=50))
    assert len(engines(server)) == 1
    built = Builder()
    built.add("TilewrightMemory", at="memory", unload_models=True, trim=True, end_engine=True, memory_limit="")
    server.run(built.graph)
    assert not engines(server)
    server.run(generate("after", seed=51))
    assert len(engines(server)) == 1


@pytest.mark.parametrize("place", ["user/tilewright.toml", "config/tilewright/comfyui.toml"])
def test_a_server_that_a_file_names_takes_the_jobs(server: comfyui.Server, tmp_path: Path, place: str) -> None:
    config = tmp_path / "server.toml"
    config.write_text(f'[models.elsewhere]\nmodel = "{SHAPES}"\n[devices.main]\ndevice = "cpu"\n')
    token = tmp_path / "token"
    token.write_text("secret-of-the-tests-0123456789abcdef\n")
    token.chmod(0o600)
    command = [PROGRAM, "serve", "--config", str(config), "--listen", "127.0.0.1:0"]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    log = (tmp_path / "server.log").open("wb")
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as served:
        try:
            assert served.stdout is not None
            line = served.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found is not None, (tmp_path / "server.log").read_text()
            file = server.base / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"# The server for tests\nserver = \"{found[0]}\"\ntoken-file = '{token}'\n")
            try:
                server.run(generate("there", seed=60, model_on_server="elsewhere"))
                with pytest.raises(comfyui.PromptFailed, match="no 'nowhere'"):
                    server.run(generate("none", seed=61, model_on_server="nowhere"))
                file.write_text("adress = 5\n")
                with pytest.raises(comfyui.PromptFailed, match=r"toml:1: expected KEY = .TEXT. with one of server"):
                    server.run(generate("none", seed=62))
            finally:
                file.unlink()
        finally:
            served.terminate()
    server.run(generate("here", seed=60))
    assert difference(saved(server, "there"), saved(server, "here")) < 1e-6


def test_without_an_engine_a_line_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    started = comfyui.Server(
        tmp_path / "base",
        packs={"tilewright": comfyui.PACK, "tests": comfyui.TEST_NODES},
        models={"vae/tiny.safetensors": TINY},
        environment={
            "TILEWRIGHT_PROGRAM": "", "PATH": "/nowhere", "HOME": str(tmp_path / "home"), "XDG_DATA_HOME": "",
            "XDG_CONFIG_HOME": "", "TILEWRIGHT_SERVER": "",
        },
    )  # fmt: skip
    try:
        with pytest.raises(comfyui.PromptFailed) as error:
            built = Builder()
            latent = built.add("TestLatent", shape="1,16,8,8", seed=1)
            built.graph["engine"] = on_engine("TilewrightDecode", samples=list(latent), vae="tiny.safetensors")
            built.add("TestSave", name="", image=("engine", 0))
            started.run(built.graph)
        (line,) = error.value.messages
        assert "pip install 'tilewright[engine]'" in line and "tilewright engine install" in line and "\n" not in line
    finally:
        started.stop()


def test_a_hundred_runs_hold_no_more_memory(server: comfyui.Server) -> None:
    def held(first: int, count: int) -> int:
        for number in range(first, first + count):
            server.run(generate("", seed=number, steps=1, width=64))
        return server.memory()[0]

    early = held(1000, 25)
    assert held(1025, 75) - early < 24 * 2**20
    assert not list((server.base / "private").glob("tilewright-comfyui-*"))


def test_models_of_further_folders_are_offered(server: comfyui.Server, tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "x.safetensors")
    server.add_model("checkpoints/whole.safetensors", tmp_path / "x.safetensors")
    server.add_model("diffusion_models/packed.gguf", tmp_path / "x.safetensors")
    inputs = server.nodes("TilewrightGenerate")["TilewrightGenerate"]["input"]["required"]
    options = inputs["model"][1]["options"] if inputs["model"][0] == "COMBO" else inputs["model"][0]
    assert {
        "packed.gguf",
        "transformer.safetensors",
        "checkpoints: whole.safetensors",
        "diffusers: flux-shapes",
    } <= set(options)
