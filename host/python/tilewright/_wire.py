"""Requests and answers of the service's interface, the same for threads and for asyncio."""

from __future__ import annotations

import contextlib
import io
import json
import os
import uuid
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any, Union, cast

from . import api
from ._tensors import is_array, to_safetensors
from .errors import ConnectionFailed, JobFailed, RequestError, TilewrightError

if TYPE_CHECKING:
    import httpx

#: A file that a job reads: a path, its bytes, an open binary file, or an array.
Source = Union[str, "os.PathLike[str]", bytes, IO[bytes], Any]

#: The names of a job's files, and of the tensor that an array becomes.
TENSORS = {"latent": "latent", "noise": "noise", "mask": "mask", "image": "sample"}

#: The tensors of results.
RESULTS = ("latent_tensor", "latent", "sample")

#: Seconds that an answer may take to begin: a module may have to be compiled.
PATIENCE = 300.0

#: States in which nothing more happens to a job.
ENDS = frozenset({"done", "failed", "cancelled", "expired"})


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are given, by their names in JSON."""
    return {name.rstrip("_"): value for name, value in options.items() if value is not None}


def of_prompt(
    prompt: str,
    model: str,
    negative_prompt: str | None,
    sample: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """A request for a picture or clip of a prompt."""
    request = given({**options, "model": model, "prompt": prompt, "negative_prompt": negative_prompt})
    return {**request, "sample": given(sample)} if sample else request


def of_sample(model: str, sample: Mapping[str, Any] | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """A request for a latent of conditioning."""
    return {**given({**options, "model": model}), "sample": given(sample or {})}


def of_encode(model: str, frames: int | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """A request for the latent of a picture or clip."""
    return {**given({**options, "model": model}), "encode": given({"frames": frames})}


def module(parts: Mapping[str, tuple[str, Any, str]]) -> dict[str, Any]:
    """The body and headers of a module."""
    return {"content": parts["module"][1].read(), "headers": {"content-type": "application/wasm"}}


def replacement(module: str | None, settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """The module that is to be in force, with its settings."""
    body: dict[str, Any] = {} if settings is None else {"settings": dict(settings)}
    if module is not None:
        body["digest" if module.startswith("sha256:") else "source"] = module
    return body


@contextlib.contextmanager
def opened(files: Mapping[str, Source | None]) -> Generator[dict[str, tuple[str, Any, str]], None, None]:
    """The files of a form. Those that are named by their paths are open until the block ends, and stream."""
    with contextlib.ExitStack() as stack:
        parts: dict[str, tuple[str, Any, str]] = {}
        for name, source in files.items():
            if source is None:
                continue
            if isinstance(source, (str, os.PathLike)):
                path = cast(str, os.fspath(source))
                try:
                    content: Any = stack.enter_context(open(path, "rb"))
                except OSError as error:
                    raise TilewrightError(f"{path}: {error.strerror}") from None
            # As files, they are sent in pieces: httpx copies bytes as a whole, and more than once.
            elif isinstance(source, (bytes, bytearray, memoryview)):
                content = io.BytesIO(cast(bytes, source))
            elif is_array(source):
                content = io.BytesIO(to_safetensors(TENSORS.get(name, name), source))
            elif hasattr(source, "read"):
                content = source
            else:
                raise TypeError(f"{name}: expected a path, bytes, a binary file or an array, not {type(source).__name__}")
            parts[name] = (name, content, "application/octet-stream")
        yield parts


@contextlib.contextmanager
def written(path: str | os.PathLike[str], *, survives: bool = True) -> Generator[IO[bytes], None, None]:
    """A file to write that gets its name only when all of it is there.

    Args:
        survives: a power failure leaves it whole, too, which takes the disk some time.

    Raises:
        TilewrightError: it can't be written.
    """
    target = os.fspath(path)
    unfinished = os.path.join(os.path.dirname(target), f".tilewright-{uuid.uuid4().hex}")
    try:
        with open(unfinished, "xb") as file:
            try:
                yield file
                file.flush()
                if survives:
                    os.fsync(file.fileno())
                os.replace(unfinished, target)
            except BaseException:
                os.unlink(unfinished)
                raise
    except OSError as error:
        raise TilewrightError(f"{target}: {error.strerror or error}") from None


def form(request: Mapping[str, Any], parts: Mapping[str, tuple[str, Any, str]]) -> dict[str, Any]:
    """The body and headers of a submission."""
    # Sent again after a break, it would be the same job.
    headers = {"idempotency-key": str(uuid.uuid4())}
    if not parts:
        return {"json": dict(request), "headers": headers}
    files: list[tuple[str, tuple[str | None, Any, str]]] = [("request", (None, json.dumps(request).encode(), "application/json"))]
    files.extend((name, part) for name, part in parts.items())
    return {"files": files, "headers": headers}


def check(response: httpx.Response) -> httpx.Response:
    """The response, whose body was read if it is an error's.

    Raises:
        RequestError: the server refused.
    """
    if response.is_success:
        return response
    try:
        line = str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        line = f"{response.status_code} {response.reason_phrase}"
    wait = response.headers.get("retry-after", "")
    raise RequestError(line, response.status_code, float(wait) if wait.isdigit() else None)


def broken(address: str, error: Exception) -> ConnectionFailed:
    """The error of a connection."""
    text = str(error) or type(error).__name__
    return ConnectionFailed(f"{address}: {text}")


def left(address: str) -> ConnectionFailed:
    """The error of a stream that ended before its job."""
    return broken(address, ConnectionError("the server ended; the job goes on when it is back"))


def events(lines: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Server-sent events out of the lines of a stream."""
    state = Events()
    for line in lines:
        yield from state.add(line)


class Events:
    """Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html), a line at a time."""

    def __init__(self) -> None:
        self._name = "message"
        self._data: list[str] = []

    def add(self, line: str) -> list[tuple[str, dict[str, Any]]]:
        """Takes a line, without its end; an empty one completes an event."""
        if line:
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                self._name = value
            elif field == "data":
                self._data.append(value)
            return []
        found = [(self._name, json.loads("\n".join(self._data)))] if self._data else []
        self._name, self._data = "message", []
        return found


def ended(job: api.Job) -> api.Job:
    """A job that ended well.

    Raises:
        JobFailed: it has no result.
    """
    if job.state == "done":
        return job
    raise JobFailed(job.error or f"the job was {job.state}", job.id, job.state)
