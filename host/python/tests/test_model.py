"""Models by their shapes: prices and decisions are the program's, and bad input is one line."""

from __future__ import annotations

import copy
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy
import pytest

import tilewright
from conftest import EXAMPLES, SHAPES, VAE, program
from tilewright import records
from tilewright._tensors import to_safetensors
from tilewright._toml import bytes_of

pytest.importorskip("tilewright._native")

CLIPS = EXAMPLES / "models" / "wan-tiny" / "Wan2.1_VAE.safetensors"
LIMIT = 2**30
COMMON = ["--device", "cpu", "--dry-run", "--json", "--memory-limit", "1GiB", "-q", "--no-history"]

#: Decisions that are compared with the program's, for each stage; a run of the program takes half a second.
COUNT = int(os.environ.get("TILEWRIGHT_DECISIONS", "8")) // 4


def latent(folder: Path, *shape: int) -> Path:
    path = folder / f"{'x'.join(map(str, shape))}.safetensors"
    path.write_bytes(to_safetensors("latent", numpy.zeros(shape, numpy.float32)))
    return path


def same(decision: tilewright.Decision[Any, Any, Any], said: dict[str, Any]) -> None:
    """What is decided here is what the program decided, to the byte."""
    assert decision.answer is not None and decision.estimate is not None
    compact = {key: json.dumps(said[key], separators=(",", ":"), ensure_ascii=False) for key in ("plan", "answer")}
    assert (decision.plan.to_json(), decision.answer.to_json()) == (compact["plan"], compact["answer"])
    assert decision.estimate.to_dict() == said["estimate"]
    assert (list(decision.adjusted), decision.fuel) == (said["adjusted"], said["fuel"])
    record = decision.record
    assert record.policy.to_dict() == said["policy"] and record.capabilities.to_dict() == said["capabilities"]
    assert list(json.loads(record.to_json())) == [
        key for key in said if key not in ("outputs", "path", "model", "tokens")
    ]


def as_asked(device: tilewright.Device, said: dict[str, Any]) -> tilewright.Device:
    """The device with the memory that was free when the program decided."""
    request = said["request"]
    return device.with_memory(
        free_bytes=said["device"]["free_bytes"],
        host_total_bytes=request["host_total_bytes"],
        host_free_bytes=request["host_free_bytes"],
    )


def host_of(quote: Any) -> dict[str, Any]:
    """The host's memory of a quote: the program looks anew for each encoder."""
    request = quote.request.to_dict()
    return {key: request[key] for key in ("host_total_bytes", "host_free_bytes")}


def test_a_device_has_facts(device: tilewright.Device) -> None:
    assert device.facts.backend == "cpu" and device.fingerprint
    other = device.with_memory(free_bytes=2**30)
    assert other.facts.free_bytes == 2**30 and other.fingerprint == device.fingerprint
    assert device.facts.free_bytes != 2**30


def test_decodes_are_decided_as_by_the_program(device: tilewright.Device, tmp_path: Path) -> None:
    model = tilewright.Model(VAE)
    assert model.kind == "vae" and model.inspect()
    for number in range(COUNT):
        batch, height, width = 1 + number % 2, 32 + 16 * (number % 9), 64 + 8 * (number % 13)
        file = latent(tmp_path, batch, 16, height, width)
        said = json.loads(program("decode", file, "--vae", VAE, *COMMON))
        quote = model.decode(
            as_asked(device, said), batch=batch, height=8 * height, width=8 * width, memory_limit=LIMIT
        )
        assert quote.request.to_dict() == said["request"] and quote.stage == "decode"
        same(tilewright.Policy("adaptive").decide(quote), said)


def test_clips_are_decided_as_by_the_program(device: tilewright.Device, tmp_path: Path) -> None:
    model = tilewright.Model(CLIPS)
    assert model.kind == "video-vae"
    for number in range(COUNT):
        frames, side = 1 + 2 * (number % 7), 16 + 8 * (number % 6)
        file = latent(tmp_path, 1, 16, frames, side, side + 8 * (number % 5))
        said = json.loads(program("decode", file, "--vae", CLIPS, "-o", tmp_path / "a.mkv", *COMMON))
        size = said["request"]
        quote = model.decode(
            as_asked(device, said),
            frames=size["frames"],
            height=size["height"],
            width=size["width"],
            memory_limit=LIMIT,
        )
        assert quote.request.to_dict() == size
        same(tilewright.Policy("adaptive").decide(quote), said)


def test_encodes_are_decided_as_by_the_program(device: tilewright.Device, tmp_path: Path) -> None:
    picture = EXAMPLES / "latents" / "astronaut.png"
    said = json.loads(program("encode", picture, "--vae", VAE, "-o", tmp_path / "a.latent", *COMMON))
    size = said["request"]
    quote = tilewright.Model(VAE).encode(
        as_asked(device, said), width=size["width"], height=size["height"], memory_limit=LIMIT
    )
    assert quote.request.to_dict() == size and quote.stage == "encode"
    same(tilewright.Policy("adaptive").decide(quote), said)


def test_texts_and_samples_are_decided_as_by_the_program(device: tilewright.Device, tmp_path: Path) -> None:
    encoders = [SHAPES / "text_encoder", SHAPES / "text_encoder_2"]
    files = [option for encoder in encoders for option in ("--text-encoder", encoder)]
    conditioning = tmp_path / "c.safetensors"
    model = tilewright.Model(*encoders)
    assert model.kind == "text-encoder" and len(model.inspect()) == 2
    for number in range(COUNT):
        prompt = " ".join(["a cat, (red:1.2) on a mat"] * (1 + 3 * number))
        said = json.loads(program("embed", prompt, *files, "-o", conditioning, *COMMON))
        quotes = model.text(as_asked(device, said["encoders"][0]), prompts=[prompt], memory_limit=LIMIT)
        assert len(quotes) == len(said["encoders"]) == 2
        for quote, one in zip(quotes, said["encoders"]):
            assert quote.request.to_dict() == {**one["request"], **host_of(quote)}
            same(tilewright.Policy("adaptive").decide(quote), one)

    program("embed", "a cat", *files, "-o", conditioning, "--device", "cpu", "-q")
    transformer = SHAPES / "transformer"
    model = tilewright.Model(transformer)
    assert model.kind == "transformer"
    for number in range(COUNT):
        side, steps, sampler = 64 + 32 * (number % 8), 2 + number, ["euler", "dpmpp_2m", "heun"][number % 3]
        size = ["--size", f"{side}x{side}", "--steps", steps, "--sampler", sampler]
        files = ["--transformer", transformer, "--conditioning", conditioning, "-o", tmp_path / "a.latent"]
        said = json.loads(program("sample", *files, *size, *COMMON))
        asked: dict[str, Any] = {"width": side, "height": side, "steps": steps, "sampler": sampler}
        there = as_asked(device, said)
        quote = model.denoise(there, conditioning=[str(conditioning)], memory_limit=LIMIT, **asked)
        assert quote.request.to_dict() == said["request"]
        same(tilewright.Policy("adaptive").decide(quote), said)
        # Before the prompt is encoded, it is the same.
        tokens = said["request"]["text_tokens"]
        foreseen = model.denoise(there, text_tokens=tokens, memory_limit=LIMIT, cfg=1.0, **asked)
        assert foreseen.request == quote.request


def test_plans_have_prices_and_layers(device: tilewright.Device, adaptive: tilewright.Policy) -> None:
    quote = tilewright.Model(VAE).decode(device, width=1024, height=768)
    plan = adaptive.decide(quote).plan
    cost = quote.estimate(plan)
    assert cost.peak_bytes > 0 and cost.elapsed_ms > 0
    impossible = records.Plan.from_json({**plan.to_dict(), "precision": {"kind": "uniform", "dtype": "i4"}})
    first, second = quote.estimates([plan, impossible])
    assert first == cost and isinstance(second, str) and "\n" not in second
    with pytest.raises(tilewright.ModelError) as error:
        quote.estimate(impossible)
    assert str(error.value) == second
    layers = quote.layers(plan)
    assert layers and all(layer["runs"] > 0 and layer["seconds"] >= 0 for layer in layers)
    assert any(layer["name"].startswith("decoder.") for layer in layers)


def test_a_history_corrects_prices(
    device: tilewright.Device, adaptive: tilewright.Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quote = tilewright.Model(VAE).decode(device, width=256, height=256)
    with pytest.raises(tilewright.ModelError):
        quote.with_history(tmp_path / "missing" / "history.sqlite")
    assert adaptive.decide(quote).expected is None
    history = tmp_path / "history.sqlite"
    monkeypatch.setenv("TILEWRIGHT_HISTORY", str(history))
    run = ["decode", latent(tmp_path, 1, 16, 32, 32), "--vae", VAE, "--device", "cpu", "-o", tmp_path / "a.png", "-q"]
    program(*run)
    measured = adaptive.decide(quote.with_history(history))
    said = json.loads(program(*run, "--dry-run", "--json"))
    assert measured.expected is not None and measured.estimate is not None
    assert measured.expected.to_dict() == said["expected"] != said["estimate"] == measured.estimate.to_dict()
    assert measured.record.expected == measured.expected


def test_bad_input_is_one_line(device: tilewright.Device, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.safetensors"
    nothing.write_bytes(b"")
    vae, transformer = tilewright.Model(VAE), tilewright.Model(SHAPES / "transformer")
    huge: dict[str, Any] = {"width": 65536, "height": 65536, "memory_limit": 2**20}
    for wrong, words in [
        (lambda: tilewright.Model(tmp_path / "missing.safetensors"), "missing.safetensors"),
        (lambda: tilewright.Model(nothing), "nothing.safetensors"),
        (lambda: tilewright.Model(), "no file of a model"),
        (lambda: tilewright.Model("\ud800"), "no file has such a name"),
        (lambda: tilewright.Model(VAE, family="none"), "none"),
        (lambda: vae.denoise(device, width=64, height=64), "samples are of a transformer"),
        (lambda: transformer.decode(device, width=64, height=64), "VAE"),
        (lambda: transformer.text(device, tokens=[77]), "prompts are for text encoders"),
        (lambda: vae.decode(device, width=63, height=64), "a width of 63 pixels: a multiple of"),
        (lambda: vae.decode(device, width=0, height=64), "width: expected a whole number from 1"),
        (lambda: vae.decode(device, **huge), "a memory limit of 1.00 MiB is too little"),
        (lambda: vae.decode(device, width=64, height=64, objective="best"), "best"),  # type: ignore[arg-type]
        (lambda: vae.decode(device, width=64, height=64, invented=1), "invented"),  # type: ignore[call-arg]
        (lambda: vae.decode(device, width=-8, height=64), "width: expected a whole number from 1 to 4294967295, not -8"),
        (lambda: vae.decode(device, width=8.5, height=64), "width: expected"),  # type: ignore[arg-type]
        (lambda: vae.decode(device, width=64, height=None), "height: expected"),  # type: ignore[arg-type]
        (lambda: vae.encode(device, width=64, height=True), "height: expected a whole number"),
        (lambda: vae.decode(device, width=64, height=64, batch=2**32), "batch: expected"),
        (lambda: vae.decode(device, width=64, height=64, memory_limit="much"), "memory_limit: expected a number of bytes"),
        (lambda: vae.decode(device, width=64, height=64, memory_limit=-1), "memory_limit: expected a number of bytes"),
        (lambda: vae.decode(device, width=64, height=64, allows_blended=1), "True or False"),  # type: ignore[arg-type]
        (lambda: transformer.denoise(device, cfg=float("nan")), "cfg: expected a finite number, not nan"),
        (lambda: transformer.denoise(device, sigmas=[1.0, float("inf")]), "sigmas: expected a list of which each is"),
        (lambda: transformer.denoise(device, sampler="\ud800"), "sampler: expected a text"),
        (lambda: transformer.denoise(device, sigmas=[1.0, 0.0], steps=1), "steps: does not go with sigmas"),
        (lambda: transformer.denoise(device, denoise=0.5), "denoise: needs latent or starts_with_picture"),
        (lambda: transformer.denoise(device, conditioning=["a"]), "conditioning: needs latent or width"),
        (lambda: transformer.denoise(device, conditioning=["a"], width=64), "width: needs height"),
        (lambda: transformer.denoise(device, conditioning=["a"], latent="b", frames=5), "frames: does not go with latent"),
        (lambda: transformer.denoise(device, conditioning=["a"], latent="b", has_negative=True), "does not go with cond"),
        (lambda: transformer.denoise(device, conditioning=["a"], latent="b", cfg=2.0), "cfg: needs negative"),
        (lambda: transformer.text(device, prompts="a cat"), "prompts: expected a list"),
        (lambda: tilewright.Model(VAE, scaling_factor=float("inf")), "scaling_factor: expected a finite number"),
        (lambda: device.with_memory(free_bytes=-1), "free_bytes: expected a whole number"),
        (lambda: tilewright.Device.from_json("{}"), "device"),
        (lambda: tilewright.Device.from_json("\ud800"), "text: expected a text"),
        (lambda: tilewright.Device.from_json(b"\xff"), "UTF-8"),
        (lambda: tilewright.Device.from_file(nothing), "nothing.safetensors"),
        (lambda: tilewright.Device.from_file(tmp_path / "missing.json"), "missing.json: No such file"),
        (lambda: tilewright.Device.from_file("a\0b"), "null byte"),
    ]:
        with pytest.raises(tilewright.ModelError) as error:
            wrong()
        assert words in str(error.value) and "\n" not in str(error.value) and str(error.value)
    for mistaken in (
        lambda: tilewright.Device.from_file(1),  # type: ignore[arg-type]
        lambda: tilewright.Model(b"a"),  # type: ignore[arg-type]
        lambda: vae.decode(device, height=64),  # type: ignore[call-arg]
        lambda: vae.decode(None, width=64, height=64),  # type: ignore[arg-type]
        lambda: vae.decode(device, width=64, height=64).estimates(["a"]),  # type: ignore[list-item]
        lambda: tilewright.Device.from_json(None),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match="width|expected Device|expected Plan|expected str or bytes|path: expected str or PathLike"):
            mistaken()
    says_nothing = tmp_path / "program"
    says_nothing.write_text("#!/bin/sh\necho '{}'\n")
    says_nothing.chmod(0o755)
    with pytest.raises(tilewright.ProgramError, match=f"^{says_nothing}: it describes no device as version"):
        tilewright.Device.measure(program=says_nothing)
    with pytest.raises(tilewright.ProgramError):
        tilewright.Device.measure(program=tmp_path / "missing")
    with pytest.raises(tilewright.ProgramError):
        tilewright.Device.measure(device="cuda:99")


def test_limits_are_bytes_or_texts(device: tilewright.Device) -> None:
    vae = tilewright.Model(VAE)
    for limit in ("1GiB", "1024 mib", "1073741824", "1g", numpy.int64(2**30), 2**30):
        size: dict[str, Any] = {"width": numpy.int32(256), "height": 256, "memory_limit": limit}
        assert vae.decode(device, **size).request.memory_limit == 2**30
    assert bytes_of("1.5GB") == 1_500_000_000 and bytes_of("64B") == 64 and bytes_of(".5k") == 512
    for wrong in ("", "GiB", "-1", "1e9", "1.2.3GB", "8PiB", "0", "0.1", "9000000TiB", "\u00b2GiB", 0, True, 2**63):
        with pytest.raises(ValueError):
            bytes_of(wrong)


def test_models_and_devices_are_pickled_and_copied(device: tilewright.Device, tmp_path: Path) -> None:
    there = device.with_memory(free_bytes=2**33).with_memory(host_free_bytes=2**34)
    vae = tilewright.Model(VAE, family="flux", scaling_factor=0.5)
    for again in (pickle.loads(pickle.dumps((there, vae))), copy.deepcopy((there, vae))):
        assert (again[0].facts, again[0].fingerprint) == (there.facts, there.fingerprint)
        assert again[1].inspect() == vae.inspect() and repr(again[1]) == repr(vae)
        asked: dict[str, Any] = {"width": 256, "height": 256}
        assert again[1].decode(again[0], **asked).request == vae.decode(there, **asked).request


def test_a_model_is_found_from_any_folder(device: tilewright.Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(VAE.parent)
    sent = pickle.dumps(tilewright.Model(VAE.name))
    monkeypatch.chdir(tmp_path)
    assert pickle.loads(sent).kind == "vae"
