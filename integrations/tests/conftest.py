"""The fixtures that tests of ComfyUI share: models of real sizes, and a server that has them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import comfyui
import comfyui_models

#: The models of the shared server, by their places.
MODELS = {
    "vae/sdxl.safetensors": "sdxl",
    "vae/flux.safetensors": "flux",
    "vae/wan.safetensors": "wan",
    "vae/wan-22.safetensors": "wan-22",
    "diffusion_models/transformer.safetensors": "transformer",
    "checkpoints/checkpoint.safetensors": "checkpoint",
    "loras/lora.safetensors": "lora",
}


#: The files whose tests take minutes. They come last, so that a run that is cut off has seen most.
LONG = ("test_bands_real", "test_clips", "test_comfyui_generate")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem in LONG)


@pytest.fixture(scope="session")
def comfyui_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes a model's file by its kind, once for all tests; in a folder that the environment names, once for all."""
    named = os.environ.get("TILEWRIGHT_COMFYUI_MODELS")
    folder = Path(named) if named else tmp_path_factory.mktemp("models")
    return lambda kind: comfyui_models.make(kind, folder / f"{kind}.safetensors")


@pytest.fixture(scope="session")
def comfyui_source() -> Path:
    """The folder of ComfyUI's sources; without it, tests of ComfyUI are left out."""
    found = comfyui.source()
    if found is None:
        pytest.skip(f"{comfyui.SOURCE_VARIABLE} names no folder with ComfyUI's main.py in it")
    return found


@pytest.fixture(scope="session")
def shared_server(
    comfyui_source: Path, comfyui_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[comfyui.Server]:
    """A ComfyUI with this pack, nodes for tests and all models, for all tests together."""
    base = tmp_path_factory.mktemp("comfyui")
    models = {place: comfyui_model(kind) for place, kind in MODELS.items()}
    packs = {"tilewright": comfyui.PACK, "testing": comfyui.TEST_NODES}
    server = comfyui.Server(base, packs=packs, models=models)
    yield server
    server.stop()
    print(server.log()[-4000:])


@pytest.fixture
def server(shared_server: comfyui.Server) -> comfyui.Server:
    """The shared ComfyUI, with nothing loaded."""
    shared_server.free()
    return shared_server
