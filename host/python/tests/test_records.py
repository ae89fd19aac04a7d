"""Types of records: what the program writes comes back to the byte, and is what its schemas say."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, Union

import pytest

from conftest import EXAMPLES, ROOT, SHAPES, VAE, program
from tilewright import records
from tilewright._json import Message

LATENT = EXAMPLES / "latents" / "astronaut.latent"
PYTHON = ROOT / "host" / "python"
SCHEMAS = sorted((ROOT / "host" / "plan").glob("*record.schema.json"))

AnyRecord = Union[records.Record, records.DenoiseRecord, records.TextRecord]


def read(line: str) -> AnyRecord:
    kinds: dict[str, type[AnyRecord]] = {"denoise": records.DenoiseRecord, "text": records.TextRecord}
    return kinds.get(json.loads(line)["stage"], records.Record).from_json(line)


@pytest.fixture(scope="session")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Lines of every stage, with and without outcomes, and with all that was asked."""
    folder = tmp_path_factory.mktemp("records")
    picture = str(folder / "a.png")
    runs = [
        # A prompt that was encoded before would have no text stage.
        [
            "generate",
            f"a cat {uuid.uuid4()}",
            "--model",
            SHAPES,
            "--size",
            "64x64",
            "--steps",
            "2",
            "-o",
            folder / "b.png",
        ],
        ["decode", LATENT, "--vae", VAE, "-o", picture],
        ["encode", picture, "--vae", VAE, "-o", folder / "c.latent"],
        ["decode", LATENT, "--vae", VAE, "-o", folder / "d.png", "--dry-run"],
        ["decode", LATENT, "--vae", VAE, "-o", folder / "e.png", "--policy", "fixed", "--set", "space=blended"],
        ["decode", LATENT, "--vae", VAE, "-o", folder / "f.png", "--policy", "fixed", "--memory-limit", "24MiB"],
    ]
    for number, arguments in enumerate(runs):
        full = ["--record", "full"] if number < 2 else []
        program(*arguments, "--device", "cpu", "--record", folder / "all.jsonl", *full)
    return (folder / "all.jsonl").read_text().splitlines()


def test_records_come_back_to_the_byte(lines: list[str]) -> None:
    assert len(lines) > 6
    assert {json.loads(line)["stage"] for line in lines} == {"text", "denoise", "decode", "encode"}
    for line in lines:
        record = read(line)
        assert record.to_json() == line
        assert read(line) == record
        for again in (pickle.loads(pickle.dumps(record)), copy.deepcopy(record)):
            assert again == record and again.to_json() == line


def test_records_of_earlier_versions_are_read() -> None:
    for path in sorted((ROOT / "fuzz" / "seeds" / "record").glob("[!f]*.jsonl")):
        for line in path.read_text().splitlines():
            record = records.Record.from_json(line)
            assert record.stage is None and record.capabilities is None and record.request.hints
            assert json.loads(record.to_json()) == json.loads(line)


def test_values_of_other_types_are_refused(lines: list[str]) -> None:
    whole = next(one for one in map(json.loads, lines) if one["stage"] == "decode" and one["outcome"])

    def changed(*path: str, to: Any) -> dict[str, Any]:
        copied = copy.deepcopy(whole)
        inner = copied
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = to
        return copied

    for wrong, words in [
        (changed("request", to=None), "Record.request: expected an object, not null"),
        (changed("request", "batch", to="x"), "Request.batch: expected a whole number, not a text"),
        (changed("request", "batch", to=True), "Request.batch: expected a whole number, not true or false"),
        (changed("plan", "space", to=[]), "Plan.space: expected an object, not a list"),
        (changed("plan", "offload", to=1), "Plan.offload: expected true or false"),
        (changed("plan", "options", to=[["a"]]), "Plan.options: expected a list of 2"),
        (changed("attempts", to=5), "Record.attempts: expected a list, not a whole number"),
        (changed("attempts", to=["a"]), "Record.attempts: expected an object, not a text"),
        (changed("adjusted", to=[1]), "Record.adjusted: expected a text, not a whole number"),
        (changed("outcome", "elapsed_ms", to="x"), "Outcome.elapsed_ms: expected a number, not a text"),
        (changed("policy", "settings", to=[]), "PolicyIdentity.settings: expected an object"),
    ]:
        with pytest.raises(ValueError, match=words):
            records.Record.from_json(wrong)
    # What a newer program has is left as it is.
    newer = records.Record.from_json(changed("plan", "space", to={"kind": "spiral", "turns": 3}))
    assert newer.to_dict()["plan"]["space"] == {"kind": "spiral", "turns": 3}
    for deep in ("[" * 200_000, '{"plan":' * 200_000):
        with pytest.raises(ValueError):
            records.Record.from_json(deep)


def test_failed_attempts_are_read() -> None:
    plan = {
        "space": {"kind": "whole"}, "time": {"kind": "carried", "frames": 16}, "batch": 1,
        "precision": {"kind": "mixed", "dtype": "f16"}, "layout": "channels-first", "release": "each-step",
        "offload": True, "prefetch": 1, "options": [["convolution", "direct"], ["odd", 0.5]], "reason": "as set",
    }  # fmt: skip
    failures: list[tuple[dict[str, Any], records.Failure]] = [
        ({"kind": "out-of-memory", "bytes": 2**40}, records.OutOfMemoryFailure(bytes=2**40)),
        ({"kind": "non-finite", "values": 3}, records.NonFiniteFailure(values=3)),
        ({"kind": "over-limit", "bytes": 1}, records.OverLimitFailure(bytes=1)),
    ]
    for given, failure in failures:
        fallback = {"reason": "out-of-fuel", "detail": "all of it used up"}
        whole = {"plan": plan, "failure": given, "answer": None, "adjusted": ["a"], "fallback": fallback, "fuel": 5}
        attempt = records.FailedAttempt.from_json(whole)
        assert attempt.failure == failure and attempt.plan.options == (("convolution", "direct"), ("odd", 0.5))
        assert attempt.to_json() == json.dumps(whole, separators=(",", ":"))


def test_parts_are_of_types_of_their_own(lines: list[str]) -> None:
    def check(value: Any) -> None:
        """Nothing is left as it was read, but settings."""
        assert not isinstance(value, (dict, list)), value
        if isinstance(value, tuple):
            for one in value:  # pyright: ignore[reportUnknownVariableType]
                check(one)
        elif isinstance(value, Message):
            for field in dataclasses.fields(value):
                if field.name != "settings":
                    check(getattr(value, field.name))

    for line in lines:
        check(read(line))
    exchanges = [record.exchange for record in map(read, lines) if record.exchange]
    assert exchanges and all(exchange.calls for exchange in exchanges)


def test_what_is_made_here_reads_back() -> None:
    plan = records.Plan(
        space=records.ExactSpace(height=512, width=768, overlap=64),
        time=records.WholeTime(),
        batch=1,
        precision=records.MixedPrecision(dtype="bf16"),
        layout="channels-last",
        release="keep",
        offload=False,
        prefetch=0,
        options=(("convolution", "direct"),),
        reason="über 300 → 192",
    )
    assert json.loads(plan.to_json())["space"] == {"kind": "exact", "height": 512, "width": 768, "overlap": 64}
    assert records.Plan.from_json(plan.to_json()) == plan and hash(plan) == hash(copy.copy(plan))
    assert "→" in plan.to_json()
    other = dataclasses.replace(plan, space=records.WholeSpace())
    assert other != plan and json.loads(other.to_json())["space"] == {"kind": "whole"}
    with pytest.raises(AttributeError):
        plan.batch = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        object.__setattr__(plan, "invented", 1)


def test_what_is_absent_stands_for_its_default_and_stays_absent() -> None:
    precision = '"precision":{"kind":"uniform","dtype":"f32"}'
    text = f'{{{precision},"weights":"packed","guidance":"together","ahead":null,"reason":""}}'
    plan = records.DenoisePlan.from_json(text)
    assert plan.attention == records.FusedAttention() and plan.reuse == records.OffStepReuse()
    assert (plan.feed_forward, plan.products, plan.samples, plan.options) == (1, "precision", None, ())
    assert plan.to_json() == text


def test_what_a_later_version_adds_is_left_out_or_kept_as_it_is() -> None:
    newer: dict[str, Any] = {"kind": "sliced", "slices": 3}
    plan: dict[str, Any] = {
        "space": newer,
        "time": {"kind": "whole", "invented": 1},
        "batch": 1,
        "precision": {"kind": "uniform", "dtype": "f6"},
        "layout": "channels-last",
        "release": "keep",
        "offload": False,
        "prefetch": 0,
        "invented": {"later": 1},
        "reason": "",
    }
    found = records.Plan.from_json(plan)
    assert found.space == newer and found.time == records.WholeTime()
    assert found.precision == records.UniformPrecision(dtype="f6")  # type: ignore[arg-type]
    del plan["invented"]
    assert json.loads(found.to_json()) == {**plan, "time": {"kind": "whole"}}


def test_numbers_are_written_as_the_program_writes_them() -> None:
    # What serde_json writes of each, by zmij 1.0.
    for value, text in [
        (9800.0, "9800.0"),
        (0.004, "0.004"),
        (0.0001, "0.0001"),
        (1e-5, "0.00001"),
        (-1.25e-5, "-0.0000125"),
        (2.9802322387695312e-08, "2.9802322387695312e-8"),
        (5e-324, "5e-324"),
        (1e-10, "1e-10"),
        (1e15, "1000000000000000.0"),
        (1e16, "1e+16"),
        (9.03725590277404e159, "9.03725590277404e+159"),
        (-0.0, "-0.0"),
        (1 / 3, "0.3333333333333333"),
    ]:
        cost = records.DenoiseCost(peak_bytes=2**63, weights_bytes=0, step_ms=value)
        assert (
            cost.to_json() == f'{{"peak_bytes":9223372036854775808,"weights_bytes":0,"step_ms":{text},"moved_bytes":0}}'
        )
        assert records.DenoiseCost.from_json(cost.to_json()) == cost
    with pytest.raises(ValueError, match="no number of JSON"):
        records.DenoiseCost(peak_bytes=0, weights_bytes=0, step_ms=float("nan")).to_json()


def test_nonsense_is_refused() -> None:
    for wrong in ("[]", "{}", "1", '{"plan":1}', "nonsense"):
        with pytest.raises(ValueError):
            records.Record.from_json(wrong)


def test_the_types_are_those_of_the_schemas() -> None:
    assert len(SCHEMAS) == 3
    made = subprocess.run(
        [sys.executable, PYTHON / "make_records.py", *SCHEMAS], capture_output=True, check=True
    ).stdout
    text = Path(records.__file__).read_text()
    assert made.decode() == text, "python make_records.py ../plan/*record.schema.json > tilewright/records.py"


def test_every_schema_has_a_type_with_its_fields() -> None:
    for path in SCHEMAS:
        prefix = {"denoise-record": "Denoise", "text-record": "Text"}.get(path.name.removesuffix(".schema.json"), "")
        document = json.loads(path.read_bytes())
        for name, schema in {**document["$defs"], "Record": document}.items():
            kind = getattr(records, f"{prefix}{name}", None) or getattr(records, name)
            if "properties" in schema:
                assert set(schema["properties"]) <= {field.name for field in dataclasses.fields(kind)}, name
