"""The pack as its user meets it: help for each input, and example workflows that open and run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import comfyui
import make_example_workflows as examples
from workflows import to_graph

ROOT = Path(__file__).resolve().parents[2]
FOLDER = comfyui.PACK / "example_workflows"
DOCS = comfyui.PACK / "web" / "docs"
BOOK = ROOT / "docs" / "src" / "comfyui.md"
PROGRAM = os.environ.get("TILEWRIGHT_PROGRAM", str(ROOT / "target" / "debug" / "tilewright"))

#: The most bytes of a picture beside a workflow.
LARGEST = 20_000

needs_comfyui = pytest.mark.skipif(comfyui.source() is None, reason="needs ComfyUI's sources")
needs_program = pytest.mark.skipif(not Path(PROGRAM).is_file(), reason="needs the program")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, comfyui_model: Callable[[str], Path]) -> Iterator[comfyui.Server]:
    from PIL import Image

    base = tmp_path_factory.mktemp("workflows")
    packs = {"tilewright": comfyui.PACK, "tests": comfyui.TEST_NODES, "reader": examples.reader(base)}
    models = {
        f"vae/{examples.VAE}": comfyui_model("flux"),
        f"vae/{examples.WAN_VAE}": comfyui_model("wan"),
        f"diffusion_models/{examples.TRANSFORMER}": comfyui_model("transformer"),
        f"loras/{examples.LORA}": comfyui_model("lora"),
        "diffusers/FLUX.1-dev": ROOT / "examples" / "models" / "flux-shapes",
    }
    started = comfyui.Server(base / "base", packs=packs, models=models, threads=1)
    Image.linear_gradient("L").convert("RGB").resize((96, 64)).save(base / "base" / "input" / examples.PICTURE)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def about(server: comfyui.Server) -> dict[str, Any]:
    return server.nodes()


def ours(about: dict[str, Any]) -> dict[str, Any]:
    return {name: node for name, node in about.items() if name.startswith("Tilewright")}


def inputs_of(node: dict[str, Any]) -> dict[str, Any]:
    return {**node["input"].get("required", {}), **node["input"].get("optional", {})}


@needs_comfyui
def test_each_input_and_output_has_help(about: dict[str, Any]) -> None:
    found = ours(about)
    assert len(found) == 15
    for name, node in found.items():
        assert len(node["description"]) > 40 and node["category"] == "Tilewright", name
        for key, (_, *options) in inputs_of(node).items():
            assert options and options[0].get("tooltip"), f"{name}: {key}"
        page = (DOCS / f"{name}.md").read_text()
        assert page.startswith(f"# {node['display_name']}\n"), name
    assert {path.stem for path in DOCS.iterdir()} == set(found)


@needs_comfyui
def test_no_input_names_a_host_or_a_secret(about: dict[str, Any]) -> None:
    for name, node in ours(about).items():
        for key in inputs_of(node):
            is_suspect = re.search(r"server$|host|address|url|token|key|password", key) is not None
            assert not is_suspect or key == "model_on_server", f"{name}: {key}"


@needs_comfyui
def test_pages_of_help_are_served(server: comfyui.Server, about: dict[str, Any]) -> None:
    for name in ours(about):
        assert server.text(f"/extensions/tilewright/docs/{name}.md") == (DOCS / f"{name}.md").read_text()


@needs_comfyui
def test_the_book_names_each_node(about: dict[str, Any]) -> None:
    book = BOOK.read_text()
    for node in ours(about).values():
        title = node["display_name"].removesuffix(" by policy").removesuffix(" on Tilewright")
        assert title in book, title


def test_each_workflow_has_a_small_picture() -> None:
    names = {path.stem for path in FOLDER.glob("*.json")}
    assert names == set(examples.WORKFLOWS)
    for name in names:
        picture = (FOLDER / f"{name}.jpg").read_bytes()
        assert picture.startswith(b"\xff\xd8") and len(picture) < LARGEST, name


@needs_comfyui
def test_each_node_is_in_a_workflow(about: dict[str, Any]) -> None:
    shown = {
        node["type"] for path in FOLDER.glob("*.json") for node in json.loads(path.read_text())["nodes"]
    }
    # Both are drop-ins beside a node that is shown.
    assert set(ours(about)) - shown == {"TilewrightCheckpoint", "TilewrightKSamplerAdvanced"}


#: Values that make a run short.
SMALL: dict[str, Any] = {"width": 64, "height": 64, "length": 5, "steps": 2, "runs": 1, "warm_up": 0, "cases": "64x64"}


@needs_comfyui
@needs_program
@pytest.mark.parametrize("name", sorted(examples.WORKFLOWS))
def test_a_workflow_runs_as_it_is_saved(
    server: comfyui.Server, about: dict[str, Any], tmp_path: Path, name: str
) -> None:
    workflow = json.loads((FOLDER / f"{name}.json").read_text())
    # The graph that the page would queue has all inputs of this version of the nodes.
    to_graph(workflow, about)
    conditioning = examples.embedded(tmp_path) if name == "sample-on-tilewright" else None
    graph = examples.runnable(workflow, about, conditioning)
    for node in graph.values():
        if node["class_type"] == "TestConditioning":
            continue
        for key, value in SMALL.items():
            if key in node["inputs"] and not isinstance(node["inputs"][key], list):
                node["inputs"][key] = value
    result = server.run(graph)
    shown = [out for out in result.outputs.values() if out.get("images") or out.get("text")]
    assert len(shown) == sum(1 for node in graph.values() if about[node["class_type"]]["output_node"])
