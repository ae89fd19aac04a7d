"""Types of the interface: read and written alike, unknown fields ignored, made of the service's own description."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright import Engine, JobFailed, RequestError, TilewrightError, api
from tilewright._json import Message
from tilewright._toml import dumps

MAKE = Path(__file__).resolve().parents[1] / "make_api.py"


def test_messages_come_back_as_they_were() -> None:
    request = api.JobRequest(
        model="a",
        allow=("blended",),
        loras=(api.LoraField(name="ink", strength=0.5),),
        sample=api.SampleFields(seed=(1, 2), as_="diffusers", paths=api.SamplePaths(mask="/m")),
    )
    text = request.to_json()
    assert json.loads(text)["sample"]["as"] == "diffusers"
    assert api.JobRequest.from_json(text) == request
    assert api.JobRequest.from_json(text.encode()) == request
    assert api.JobRequest.from_json(json.loads(text)) == request
    newer = json.loads(text) | {"invented": {"later": 1}}
    assert api.JobRequest.from_json(newer) == request
    for wrong in ("[]", "{}", "1"):
        with pytest.raises(ValueError):
            api.JobRequest.from_json(wrong)
    with pytest.raises(AttributeError):
        request.model = "b"  # type: ignore[misc]


def test_every_message_has_readable_fields() -> None:
    kinds = [kind for kind in vars(api).values() if isinstance(kind, type) and issubclass(kind, Message)]
    assert len(kinds) > 20
    for kind in kinds:
        if kind is not Message:
            with pytest.raises(ValueError):
                kind.from_json("[]")


def test_the_types_are_those_of_the_service(engine: Engine) -> None:
    description = engine.connection.ask("GET", "/openapi.json").content
    made = subprocess.run([sys.executable, MAKE], input=description, capture_output=True, check=True).stdout
    assert made.decode() == Path(api.__file__).read_text(), "python make_api.py < openapi.json > tilewright/api.py"


def test_errors_can_be_sent_to_other_processes() -> None:
    for error in (RequestError("no", 422, 1.5), JobFailed("no", "id", "failed")):
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), vars(again)) == (str(error), vars(error))


def test_errors_are_one_line_that_can_be_printed() -> None:
    for error in (TilewrightError("a\nb\x1b[31m\ud800\n"), RequestError("a\nb\x1b[31m\ud800\n", 422)):
        assert str(error) == r"a\nb\x1b[31m\ud800" and str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(TilewrightError("−1…1: é")) == "−1…1: é"


def test_configurations_are_toml() -> None:
    tomllib = pytest.importorskip("tomllib")
    config = {
        "server": {"listen": 'a"\\\n\x7fé', "limits": {"queue": 3}},
        "models": {"a b": {"text-encoder": ["x", "y"], "scale": 0.5, "on": True}},
        "routes": [{"policy": "own", "pixels": {"from": 1}}],
    }
    assert tomllib.loads(dumps(config)) == config
    for wrong, words in (({"a": {"b": None}}, '"a"."b": a configuration has no NoneType'), ({5: 1}, "no key that is int")):
        with pytest.raises(TypeError, match=words):
            dumps(wrong)  # type: ignore[arg-type]
    with pytest.raises(TilewrightError, match="UTF-8"):
        dumps({"a": "\ud800"})
