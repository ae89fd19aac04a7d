"""The book's page on Python: its code runs as it is printed, on the models that come along."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy
import pytest

import tilewright
from conftest import ROOT, SHAPES, VAE, program
from tilewright._tensors import to_safetensors

pytest.importorskip("tilewright._native")

#: What readers have in their own places.
PLACES = {
    "/models/ae.safetensors": str(VAE),
    "/models/FLUX.1-dev": str(SHAPES),
    '"width": 768, "height": 512': '"width": 64, "height": 64, "steps": 2',
    '"https://tiles.example:7590", token=os.environ["TILEWRIGHT_TOKEN"]': "engine",
    'sample={"seed": seed}': 'sample={"seed": seed, "width": 64, "height": 64, "steps": 1}',
}


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gpu.json").write_text(program("device", "--json", "--device", "cpu"))
    Path("harbour.latent").write_bytes(to_safetensors("latent", numpy.zeros((1, 16, 8, 8), numpy.float32)))
    page = (ROOT / "docs" / "src" / "python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    for place, ours in PLACES.items():
        assert any(place in block for block in blocks), f"{place} is not on the page"
        blocks = [block.replace(place, ours) for block in blocks]
    names: dict[str, Any] = {}
    with tilewright.Engine({"flux": SHAPES}, device="cpu") as engine:
        for block in blocks:
            own = {**names, "engine": engine}
            exec(compile(block, "python.md", "exec"), own)
            names.update(own)
    assert Path("harbour.png").read_bytes().startswith(b"\x89PNG")
    assert names["values"].shape == (1, 3, 64, 64) and len(names["pictures"]) == 8
    assert names["decision"].fallback is None
