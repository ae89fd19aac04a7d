"""The nodes Decision, Monitor, Benchmark and Memory in a real ComfyUI, and the history that they read."""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import comfyui
from graphs import Builder, Graph, policy

ROOT = Path(__file__).resolve().parents[2]
RECORD: dict[str, Any] = json.loads((ROOT / "fuzz" / "seeds" / "record" / "measured.jsonl").read_text().splitlines()[0])
SAMPLE: dict[str, Any] = json.loads((ROOT / "host" / "history" / "tests" / "sample.json").read_text())

needs_comfyui = pytest.mark.skipif(comfyui.source() is None, reason="needs ComfyUI's sources")


def tiled(kind: str = "exact", *, width: int = 192, height: int = 128, overlap: int = 0, **more: Any) -> dict[str, Any]:
    """A decode's record in tiles."""
    space = {"kind": kind, "width": width, "height": height, "overlap": overlap}
    return {**RECORD, "stage": "decode", "plan": {**RECORD["plan"], "space": space}, **more}


def module(name: str) -> ModuleType:
    """A module of the pack that needs no ComfyUI."""
    spec = importlib.util.spec_from_file_location(f"alone_{name}", comfyui.PACK / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


# The history.


def test_a_history_is_bounded_and_survives_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "history.jsonl"
    monkeypatch.setenv("TILEWRIGHT_COMFYUI_HISTORY", str(file))
    history = module("history")
    assert history.latest() is None and history.records() == []
    for number in range(history.MOST + 10):
        history.add({"number": number, "exchange": {"calls": ["much"]}}, node="TilewrightVAE")
    assert [record["number"] for record in history.records()] == list(range(10, history.MOST + 10))
    history.add({"stages": [{"stage": "denoise"}, {"stage": "decode"}]}, node="TilewrightGenerate")
    assert history.latest() == {"stage": "decode"} and history.entries()[-2].record == {"stage": "denoise"}
    assert "exchange" not in file.read_text()
    with file.open("a") as opened:
        opened.write('{"node": "half of a li')
    again = module("history")
    assert again.records()[-2:] == [{"stage": "denoise"}, {"stage": "decode"}]
    again.clear()
    assert again.records() == [] and not file.exists()


def test_a_history_file_loses_its_older_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_COMFYUI_HISTORY", str(tmp_path / "history.jsonl"))
    history = module("history")
    monkeypatch.setattr(history, "LARGEST_FILE", 4000)
    for number in range(200):
        history.add({"number": number}, node="TilewrightVAE")
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert sum(map(len, lines)) < 4100 and json.loads(lines[-1])["record"] == {"number": 199}
    assert list(tmp_path.iterdir()) == [tmp_path / "history.jsonl"]


@pytest.mark.parametrize("variable", ["TILEWRIGHT_COMFYUI_HISTORY", "TILEWRIGHT_HISTORY"])
def test_a_history_that_is_off_writes_nothing(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.delenv("TILEWRIGHT_COMFYUI_HISTORY", raising=False)
    monkeypatch.setenv(variable, "off")
    history = module("history")
    assert history.history_file() is None
    history.add({"number": 1}, node="TilewrightVAE")
    assert history.latest() == {"number": 1}


def test_without_a_name_the_history_lies_in_the_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_COMFYUI_HISTORY", raising=False)
    monkeypatch.delenv("TILEWRIGHT_HISTORY", raising=False)
    # Removing the pack's folder leaves nothing behind.
    assert module("history").history_file() == comfyui.PACK / "history.jsonl"


# Tiles.


def test_tiles_lie_as_the_engine_lays_them() -> None:
    plotting = module("plotting")
    assert plotting.starts(1000, 512, 64) == [0, 448, 488]
    assert plotting.starts(960, 512, 64) == [0, 448]
    assert plotting.starts(512, 512, 64) == [0]
    assert plotting.starts(300, 512, 64) == [0]
    assert plotting.starts(300, 128, 0, is_exact=True) == [0, 128, 256]
    for extent in range(64, 700, 37):
        for tile in range(64, 300, 41):
            for overlap in (0, 16, tile // 2):
                places = plotting.starts(extent, tile, overlap)
                assert places[0] == 0 and places[-1] + min(tile, extent) == extent
                assert all(0 < after - before <= tile - overlap for before, after in zip(places, places[1:]))


def test_tiles_cover_the_picture_and_a_sample_has_none() -> None:
    plotting = module("plotting")
    for record in (RECORD, tiled(), tiled("blended", overlap=32), tiled(width=512, height=96)):
        count = torch.zeros(512, 512, dtype=torch.int32)
        for tile in plotting.tiles_of(record):
            assert tile.top + tile.height <= 512 and tile.left + tile.width <= 512
            count[tile.top : tile.top + tile.height, tile.left : tile.left + tile.width] += 1
        is_blended = record["plan"]["space"]["kind"] == "blended"
        assert int(count.min()) == 1 and (int(count.max()) > 1) == is_blended
    assert plotting.tiles_of(SAMPLE) == []


def test_tiles_are_drawn_where_they_lie() -> None:
    plotting = module("plotting")
    plain = torch.full((2, 512, 512, 3), 0.5)
    drawn = plotting.draw_tiles(plain, tiled(width=512, height=128))
    assert drawn.shape == (1, 512, 512, 3)
    # The right edge is clear of the caption; lines are darker or lighter than the shade within a tile.
    column = drawn[0, :, 500]
    shade = column[64]
    edges = [row for row in range(512) if float((column[row] - column[row - 4]).abs().max()) > 0.2]
    assert edges and all(min(row % 128, 128 - row % 128) <= 5 for row in edges)
    assert float((shade - 0.5).abs().max()) > 0.01
    assert torch.equal(plotting.draw_tiles(plain, RECORD)[0, 100:], torch.full((412, 512, 3), 128 / 255))
    # A picture of another size has the tiles in proportion, and without one there is a plain one.
    assert plotting.draw_tiles(torch.zeros(1, 64, 96, 3), tiled()).shape == (1, 64, 96, 3)
    assert plotting.draw_tiles(None, tiled()).shape == (1, 512, 512, 3)


# The nodes.


def earlier() -> list[dict[str, Any]]:
    """Records of an earlier session, the latest last."""

    def measured(elapsed: float, peak: int, **more: Any) -> dict[str, Any]:
        return tiled(outcome={**RECORD["outcome"], "elapsed_ms": elapsed, "peak_bytes": peak}, **more)

    failed = {"plan": RECORD["plan"], "failure": {"kind": "non-finite", "values": 5}, "adjusted": [], "fuel": 1}
    return [
        measured(5.0, 2**20),
        measured(100.0, 2**27),
        measured(200.0, 2**28, attempts=[failed, failed]),
        measured(600.0, 2**27, fallback={"reason": "error", "detail": "it says so"}),
        SAMPLE,
    ]


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, comfyui_model: Callable[[str], Path]
) -> Iterator[comfyui.Server]:
    base = tmp_path_factory.mktemp("reports")
    # An earlier session's history.
    lines = [json.dumps({"node": "TilewrightVAE", "record": record}) for record in earlier()]
    (base / "history.jsonl").write_text("\n".join(lines) + "\n")
    started = comfyui.Server(
        base,
        packs={"tilewright": comfyui.PACK, "tests": comfyui.TEST_NODES},
        models={"vae/sdxl.safetensors": comfyui_model("sdxl")},
        threads=1,
    )
    yield started
    started.stop()


def saved(server: comfyui.Server, name: str) -> torch.Tensor:
    return load_file(server.output(name))["values"]


def decision(record: dict[str, Any] | str | None = None) -> Graph:
    built = Builder()
    given: dict[str, Any] = {}
    if record is not None:
        text = record if isinstance(record, str) else json.dumps(record)
        given["record"] = built.add("PrimitiveStringMultiline", value=text)
    built.add("TilewrightDecision", at="decision", **given)
    built.add("TestSave", name="drawn", image=("decision", 1))
    return built.graph


@needs_comfyui
def test_a_decision_is_told_in_words(server: comfyui.Server) -> None:
    failure = {"kind": "out-of-memory", "bytes": 300 * 2**20}
    failed = {"plan": RECORD["plan"], "failure": failure, "adjusted": [], "fuel": 1}
    record = tiled(
        attempts=[failed],
        adjusted=["tile 100 → 128: no less than 128"],
        fallback={"reason": "trap", "detail": "unreachable"},
    )
    text = server.run(decision(record)).texts("decision")[0]
    for words in (
        "decode: flux 512×512", "adaptive 0.1.0", "attempt 1 failed: out of memory at 300 MiB: the whole picture, f32",
        "exact tiles of 192×128", "reason: whole; best balance", "answer: the whole picture", "tile 100 → 128",
        "since trap: unreachable", "estimate: 129 MiB", "outcome: 129 MiB, 3226 ms", "+0 % of memory, +5 % of time",
    ):  # fmt: skip
        assert words in text, words
    assert saved(server, "drawn").shape == (1, 512, 512, 3)
    sampled = server.run(decision({"stages": [SAMPLE, record]})).texts("decision")[0]
    assert "denoise: flux 25×33, 8 steps" in sampled and "decode: flux 512×512" in sampled
    assert "55 ms a step" in sampled


@needs_comfyui
@pytest.mark.parametrize("wrong", ["no JSON", "[1]", '{"plan": 5, "stages": []}', '{"stages": [5]}', '{"stages": 5}', '{"plan": {}}', "5"])
def test_a_text_that_is_no_record_is_a_line(server: comfyui.Server, wrong: str) -> None:
    with pytest.raises(comfyui.PromptFailed, match="record: it is none of Tilewright's") as error:
        server.run(decision(wrong))
    assert "\n" not in error.value.messages[0]


@needs_comfyui
def test_a_monitor_counts_what_the_history_has(server: comfyui.Server) -> None:
    nothing = Builder()
    nothing.add("TilewrightMonitor", at="monitor", stage="text", latest=5)
    assert "nothing was measured yet" in server.run(nothing.graph).texts("monitor")[0]
    built = Builder()
    built.add("TilewrightMonitor", at="monitor", stage="decode", latest=3)
    built.add("TestShow", at="numbers", text=("monitor", 0))
    built.add("TestSave", name="plot", image=("monitor", 1))
    result = server.run(built.graph)
    found = json.loads(result.texts("numbers")[0])
    assert found["runs"] == 3 and list(found["stages"]) == ["decode"]
    of = found["stages"]["decode"]
    times = [100.0, 200.0, 600.0]
    assert of["elapsed_ms"] == {
        "mean": statistics.fmean(times), "least": 100.0, "most": 600.0, "deviation": statistics.stdev(times),
    }  # fmt: skip
    assert (of["failed_attempts"], of["first_plan_held"], of["fallbacks"]) == (2, 1 / 3, 1 / 3)
    estimate = RECORD["estimate"]["peak_bytes"]
    assert of["peak_over_estimate"]["most"] == 2**28 / estimate
    assert "2 failed attempts" in result.texts("monitor")[0]
    plot = saved(server, "plot")
    assert plot.shape[0] == 1 and plot.shape[2] == 1024 and len(torch.unique(plot.reshape(-1, 3), dim=0)) > 4
    # All stages, the latest first to count: the sample came last.
    built.graph["monitor"]["inputs"] |= {"stage": "all", "latest": 1}
    found = json.loads(server.run(built.graph).texts("numbers")[0])
    assert list(found["stages"]) == ["denoise"]


def decode_with_memory(name: str, **memory: Any) -> Graph:
    built = Builder()
    vae = built.add("VAELoader", vae_name="sdxl.safetensors")
    latent = built.add("TestLatent", shape="1,4,16,16", seed=len(name))
    given = {"unload_models": False, "trim": True, "end_engine": False, "memory_limit": "", **memory}
    image = built.add("VAEDecode", samples=latent, vae=vae)
    built.add("TilewrightMemory", at="memory", passed=image, **given)
    built.add("TestSave", name=name, image=("memory", 0))
    built.add("TestSave", name=f"{name}-direct", image=image)
    built.add("TestShow", at="report", text=("memory", 1))
    return built.graph


@needs_comfyui
def test_memory_passes_anything_on_and_unloads_models(server: comfyui.Server) -> None:
    report = json.loads(server.run(decode_with_memory("one")).texts("report")[0])
    assert torch.equal(saved(server, "one"), saved(server, "one-direct"))
    assert report["after"]["models"] and report["after"]["process_bytes"] > 2**27
    report = json.loads(server.run(decode_with_memory("unloaded", unload_models=True)).texts("report")[0])
    assert report["before"]["models"] and not report["after"]["models"]


@needs_comfyui
def test_memory_sets_the_limit_of_this_process_until_it_is_taken_back(server: comfyui.Server) -> None:
    def limit(text: str) -> tuple[int | None, int | None]:
        built = Builder()
        given = {"unload_models": False, "trim": False, "end_engine": False, "memory_limit": text}
        built.add("TilewrightMemory", at="memory", **given)
        built.add("TestShow", at="report", text=("memory", 1))
        report = json.loads(server.run(built.graph).texts("report")[0])
        return report["before"]["limit_bytes"], report["after"]["limit_bytes"]

    assert limit("") == (None, None)
    assert limit("1.5 GiB") == (None, 3 * 2**29)
    assert limit("") == (3 * 2**29, 3 * 2**29)
    assert limit("none") == (3 * 2**29, None)
    expected = "memory limit: expected a number of bytes, or a text as 8GiB"
    with pytest.raises(comfyui.PromptFailed, match=expected) as error:
        limit("much")
    assert "\n" not in error.value.messages[0]


@needs_comfyui
def test_what_stands_behind_memory_is_not_made_again(server: comfyui.Server) -> None:
    graph = decode_with_memory("cached")
    server.run(graph)
    again = server.run(graph)
    assert "memory" in again.cached


def benchmark(**inputs: Any) -> Graph:
    built = Builder()
    vae = built.add("VAELoader", vae_name="sdxl.safetensors")
    governed = built.add("TilewrightVAE", vae=vae, allow_blended=False, allow_lossy=False, **policy())
    given = {"work": "decode", "runs": 2, "warm_up": 1, "cases": "64x96, 128x64", "vae": vae, "governed_vae": governed}
    given |= inputs
    built.add("TilewrightBenchmark", at="benchmark", **given)
    built.add("TestShow", at="numbers", text=("benchmark", 2))
    built.add("TestSave", name="bars", image=("benchmark", 1))
    return built.graph


@needs_comfyui
@pytest.mark.parametrize("work", ["decode", "encode"])
def test_a_benchmark_measures_both_ways_on_the_same_inputs(server: comfyui.Server, work: str) -> None:
    result = server.run(benchmark(work=work))
    found = json.loads(result.texts("numbers")[0])
    assert [case["case"] for case in found["cases"]] == [f"{work} 64×96", f"{work} 128×64"]
    for case in found["cases"]:
        assert case["difference"] < 1e-4
        for side in (case["stock"], case["governed"]):
            times = side["elapsed_ms"]
            assert len(times) == 2 and side["mean_ms"] == pytest.approx(statistics.fmean(times)) and not side["error"]
        assert case["ratio"] == pytest.approx(case["stock"]["mean_ms"] / case["governed"]["mean_ms"])
    table = result.texts("benchmark")[0]
    assert table.startswith("| case | stock | governed |") and len(table.splitlines()) == 4
    assert saved(server, "bars").shape == (1, 600, 1024, 3)


@needs_comfyui
def test_a_benchmark_takes_the_latent_that_is_given_and_says_what_it_lacks(server: comfyui.Server) -> None:
    graph = benchmark(runs=1, warm_up=0, latent=["latent", 0])
    graph["latent"] = {"class_type": "TestLatent", "inputs": {"shape": "2,4,8,8", "seed": 3}}
    found = json.loads(server.run(graph).texts("numbers")[0])
    assert [case["case"] for case in found["cases"]] == ["decode 2×4×8×8"]
    with pytest.raises(comfyui.PromptFailed, match="sample: it needs model and positive and latent"):
        server.run(benchmark(work="sample"))
    with pytest.raises(comfyui.PromptFailed, match="cases: 5x5: expected sizes"):
        server.run(benchmark(cases="5x5"))


@needs_comfyui
def test_a_decode_by_policy_is_in_the_history(server: comfyui.Server) -> None:
    built = Builder()
    vae = built.add("VAELoader", vae_name="sdxl.safetensors")
    governed = built.add("TilewrightVAE", vae=vae, allow_blended=False, allow_lossy=False, **policy(memory_limit="144 MiB"))
    latent = built.add("TestLatent", shape="1,4,32,32", seed=9)
    image = built.add("VAEDecode", samples=latent, vae=governed)
    built.add("TilewrightDecision", at="decision", image=image)
    built.add("TestShow", at="record", text=("decision", 2))
    built.add("TestSave", name="drawn", image=("decision", 1))
    result = server.run(built.graph)
    record = json.loads(result.texts("record")[0])
    assert record["stage"] == "decode" and (record["request"]["width"], record["request"]["height"]) == (256, 256)
    assert record["plan"]["space"]["kind"] == "exact" and "exact tiles" in result.texts("decision")[0]
    assert saved(server, "drawn").shape == (1, 256, 256, 3)
    last = json.loads((server.base / "history.jsonl").read_text().splitlines()[-1])
    assert last["node"] == "TilewrightVAE" and last["record"] == record
