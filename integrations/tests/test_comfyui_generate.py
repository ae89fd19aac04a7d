"""Generate on Tilewright against the core nodes' way from a prompt to pixels: text encoders of real sizes, which ComfyUI
takes no others of, a transformer and a VAE of real widths."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import comfyui
from graphs import Builder, Graph, Link, policy

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("TILEWRIGHT_PROGRAM", str(ROOT / "target" / "debug" / "tilewright"))

#: Seconds that a prompt may take: a text encoder has five thousand million weights.
LONG = 900.0

#: The models of each family, by their places.
FILES = {
    "flux": {
        "text_encoders/clip_l.safetensors": "clip-l",
        "text_encoders/t5xxl_fp8_e4m3fn.safetensors": "t5xxl",
        "diffusion_models/flux.safetensors": "flux-transformer",
        "vae/flux.safetensors": "flux",
    },
    "wan": {
        "text_encoders/umt5_xxl_fp8_e4m3fn.safetensors": "umt5xxl",
        "diffusion_models/wan.safetensors": "transformer",
        "vae/wan.safetensors": "wan",
    },
}

#: The prompt, with a weight as ComfyUI writes it.
PROMPT = "a small (red:1.3) boat on the blue sea"

pytestmark = pytest.mark.skipif(
    comfyui.source() is None or not Path(PROGRAM).is_file(), reason="needs ComfyUI's sources and the program"
)


@pytest.fixture(scope="module", params=FILES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(
    family: str, tmp_path_factory: pytest.TempPathFactory, comfyui_model: Callable[[str], Path]
) -> Iterator[comfyui.Server]:
    files = {place: comfyui_model(kind) for place, kind in FILES[family].items()}
    packs = {"tilewright": comfyui.PACK, "tests": comfyui.TEST_NODES}
    base = tmp_path_factory.mktemp(f"generate-{family}")
    started = comfyui.Server(base, packs=packs, models=files, threads=2)
    yield started
    started.stop()
    # Text encoders have gigabytes: unless files are kept for the next run, the next family's get the room.
    for place, file in files.items():
        if place.startswith("text_encoders/") and "TILEWRIGHT_COMFYUI_MODELS" not in os.environ:
            file.unlink()


def core(family: str) -> Graph:
    """The core nodes, as a workflow of the family has them."""
    built = Builder()
    if family == "flux":
        clip = built.add(
            "DualCLIPLoader",
            clip_name1="t5xxl_fp8_e4m3fn.safetensors",
            clip_name2="clip_l.safetensors",
            type="flux",
            device="default",
        )
        latent = built.add("EmptySD3LatentImage", width=192, height=128, batch_size=1)
    else:
        clip = built.add("CLIPLoader", clip_name="umt5_xxl_fp8_e4m3fn.safetensors", type="wan", device="default")
        latent = built.add("EmptyHunyuanLatentVideo", width=96, height=64, length=5, batch_size=1)
    positive = built.add("CLIPTextEncode", clip=clip, text=PROMPT)
    negative = built.add("CLIPTextEncode", clip=clip, text="the sky")
    if family == "flux":
        positive = built.add("FluxGuidance", conditioning=positive, guidance=3.0)
    model: Link = built.add("UNETLoader", unet_name=f"{family}.safetensors", weight_dtype="default")
    if family == "wan":
        model = built.add("ModelSamplingSD3", model=model, shift=8.0)
    sampled = built.add(
        "KSampler", model=model, positive=positive, negative=negative, latent_image=latent, **sampling(family)
    )
    vae = built.add("VAELoader", vae_name=f"{family}.safetensors")
    built.add("TestSave", name="core", image=built.add("VAEDecode", samples=sampled, vae=vae))
    return built.graph


def sampling(family: str) -> dict[str, Any]:
    return {
        "seed": 5, "steps": 3, "cfg": 1.0 if family == "flux" else 4.0, "sampler_name": "euler", "scheduler": "simple",
        "denoise": 1.0,
    }  # fmt: skip


def on_engine(family: str) -> Graph:
    """The same by one node."""
    sizes = {
        "flux": {"width": 192, "height": 128, "frames": 0, "guidance": 3.0},
        "wan": {"width": 96, "height": 64, "frames": 5, "guidance": -1.0},
    }[family]
    encoders = [Path(place).name for place in FILES[family] if place.startswith("text_encoders/")]
    named = [*encoders, "(in the model)"][:2]
    built = Builder()
    made = built.add(
        "TilewrightGenerate",
        model=f"{family}.safetensors",
        prompt=PROMPT,
        negative_prompt="the sky",
        batch_size=1,
        text_encoder_1=named[0],
        text_encoder_2=named[1],
        vae=f"{family}.safetensors",
        **sizes,
        **sampling(family),
        **policy(),
        allow_blended=False,
    )
    built.add("TestSave", name="ours", image=made)
    built.add("TestShow", at="record", text=(made[0], 1))
    return built.graph


def test_a_generated_picture_equals_that_of_the_core_nodes(family: str, server: comfyui.Server) -> None:
    result = server.run(on_engine(family), seconds=LONG)
    stages = [stage["stage"] for stage in json.loads(result.texts("record")[0])["stages"]]
    assert stages[-2:] == ["denoise", "decode"]
    server.free()
    server.run(core(family), seconds=LONG)
    ours, theirs = (load_file(server.output(name))["values"] for name in ("ours", "core"))
    assert ours.shape == theirs.shape == ((1, 128, 192, 3) if family == "flux" else (5, 64, 96, 3))
    # A picture of many grey levels, none of them at either end for the most part.
    assert 0.02 < float(theirs.std()) and float(((theirs > 0) & (theirs < 1)).float().mean()) > 0.3
    assert float((ours - theirs).abs().max()) < 1e-4
