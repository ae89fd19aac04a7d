"""Requests and answers of the service's interface, the same for threads and for asyncio."""

from __future__ import annotations

import contextlib
import io
import json
import os
import ssl
import stat
import uuid
from collections.abc import Generator, Iterator, Mapping
from math import isfinite
from typing import IO, Any, TypeVar, Union, cast
from urllib.parse import quote

import httpx

from . import api
from ._json import Message, expect, settings_of
from ._tensors import is_array, to_safetensors
from .errors import ConnectionFailed, JobFailed, RequestError, TilewrightError, without_password

MessageT = TypeVar("MessageT", bound=Message)

#: A file that a job reads: a path, its bytes, an open binary file, or an array.
Source = Union[str, "os.PathLike[str]", bytes, IO[bytes], Any]

#: What a source is, for errors.
EXPECTED = "expected a path, bytes, a binary file or an array"

#: The names of a job's files, and of the tensor that an array becomes.
TENSORS = {"latent": "latent", "noise": "noise", "mask": "mask", "image": "sample"}

#: The tensors of results.
RESULTS = ("latent_tensor", "latent", "sample")

JSON = "application/json"

#: Seconds that an answer may take to begin: a module may have to be compiled.
PATIENCE = 300.0

#: Seconds that a connection may take to be made.
CONNECT = 15.0

#: The limits of a stream of events. The server says every 15 s that it is there: after such a silence it is not.
FOLLOWING = httpx.Timeout(120.0, connect=CONNECT)

#: States in which nothing more happens to a job.
ENDS = frozenset({"done", "failed", "cancelled", "expired"})

#: How a server refuses jobs while it ends.
ENDING = "the server is about to end"

#: What is raised below where a request fails; `fault` says what each is to callers.
FOREIGN = (RequestError, httpx.RequestError, httpx.InvalidURL, UnicodeError, RuntimeError)

#: What an address looks like.
ADDRESSES = "expected http://HOST[:PORT], https://HOST[:PORT] or unix:PATH"


class EarlyEnd(httpx.RemoteProtocolError):
    """A stream ended before its job: a server does that when it ends itself."""

    def __init__(self) -> None:
        super().__init__("the server ended; the job goes on when it is back")


# Where requests go.


def server_of(address: str) -> tuple[str, str | None]:
    """The URL of a server, and its socket if it has one.

    Raises:
        TilewrightError: it is no address.
    """
    refused = TilewrightError(f"{without_password(address)}: {ADDRESSES}")
    socket = address.removeprefix("unix:")
    if socket != address:
        if "\0" in socket:
            raise refused
        return "http://localhost", socket
    try:
        url = httpx.URL(address)
        is_right = url.scheme in ("http", "https") and url.host and (url.port or 1) < 2**16
    except (httpx.InvalidURL, UnicodeError):
        raise refused from None
    if not is_right or not address.isprintable():
        raise refused
    return address, None


def headers_of(token: str | None) -> dict[str, str]:
    """The headers of each request.

    Raises:
        TilewrightError: no server has such a token.
    """
    expect("token", token, str, type(None))
    if not token:
        return {}
    if not (token.isascii() and token.isprintable()):
        raise TilewrightError("token: expected printable ASCII: copy the line of the token's file again")
    return {"authorization": f"Bearer {token}"}


def trust_of(verify: str | os.PathLike[str] | bool) -> ssl.SSLContext | bool:
    """The authorities that a server's certificate may be of.

    Raises:
        TilewrightError: the file can't be read, or holds no certificates.
    """
    if isinstance(verify, bool):
        return verify
    try:
        return ssl.create_default_context(cafile=verify)
    except ssl.SSLError:
        raise TilewrightError(f"{os.fspath(verify)}: expected certificates in PEM") from None
    except (OSError, ValueError) as error:
        raise TilewrightError(f"{os.fspath(verify)}: {reason(error)}") from None


def path(kind: str, name: str, *further: str) -> str:
    """The path of something that the caller names, as of a job by its id.

    Raises:
        TilewrightError: nothing has such a name.
    """
    expect(f"a name or id of {kind}", name, str)
    # These would be other paths.
    if name in ("", ".", ".."):
        raise TilewrightError(f"{kind}: {name!r} is no name or id")
    return "/".join(("/v1", kind, quote(name, safe="", errors="replace"), *further))


# What requests hold.


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
    expect("sample", sample, Mapping, type(None))
    request = given({**options, "model": model, "prompt": prompt, "negative_prompt": negative_prompt})
    return {**request, "sample": given(sample)} if sample else request


def of_sample(model: str, sample: Mapping[str, Any] | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """A request for a latent of conditioning."""
    expect("sample", sample, Mapping, type(None))
    return {**given({**options, "model": model}), "sample": given(sample or {})}


def of_encode(model: str, frames: int | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """A request for the latent of a picture or clip."""
    return {**given({**options, "model": model}), "encode": given({"frames": frames})}


def module_named(module: str | os.PathLike[str] | None) -> tuple[str | None, bool]:
    """What a module is named by, and whether that is the path of a file."""
    expect("module", module, str, os.PathLike, type(None))
    if module is None:
        return None, False
    named = os.fspath(module)
    return named, not isinstance(module, str) or (named.endswith(".wasm") and not named.startswith("oci://"))


def replacement(module: str | None, settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """The module that is to be in force, with its settings."""
    request: dict[str, Any] = {} if settings is None else {"settings": settings_of(settings)}
    if module is not None:
        request["digest" if module.startswith("sha256:") else "source"] = module
    return body(request)


def body(request: Mapping[str, Any] | api.JobRequest) -> dict[str, Any]:
    """The body and headers of a request in JSON.

    Raises:
        TilewrightError: a field has a value that JSON does not have.
    """
    return {"content": written_json(request), "headers": {"content-type": JSON}}


def query(filter: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a listing.

    Raises:
        TilewrightError: a value can't be one.
    """
    found = given(filter)
    written_json(found)
    return found


def written_json(request: Mapping[str, Any] | api.JobRequest) -> bytes:
    """A request as JSON text.

    Raises:
        TilewrightError: a field has a value that JSON does not have.
    """
    try:
        text = json.dumps(_plain(request), ensure_ascii=False, allow_nan=False, default=_plain)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        found = ""
        with contextlib.suppress(RecursionError):
            found = _unwritable("", request)
        raise TilewrightError(found or str(error)) from None


def _plain(value: Any) -> Any:
    """A message, a mapping or a path, as JSON has it."""
    if isinstance(value, Message):
        return value.to_dict()
    if isinstance(value, Mapping):
        return dict(cast(Mapping[str, Any], value))
    return os.fspath(cast("os.PathLike[str]", value))


def _unwritable(name: str, value: Any) -> str:
    """The field that can't be written, and why; empty if all can."""
    if isinstance(value, Message):
        value = value.to_dict()
    if isinstance(value, Mapping):
        fields = cast(Mapping[Any, Any], value).items()
        inner = [_unwritable(f"{name}.{key}" if name else str(key), one) for key, one in fields]
        return next(filter(None, inner), "")
    if isinstance(value, (list, tuple)):
        inner = [_unwritable(f"{name}[{place}]", one) for place, one in enumerate(cast("list[Any]", value))]
        return next(filter(None, inner), "")
    if isinstance(value, float):
        return "" if isfinite(value) else f"{name}: {value} is no number of JSON"
    if isinstance(value, str):
        return "" if value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value) else f"{name}: {value!r} is no text"
    if value is None or isinstance(value, (int, os.PathLike)):
        return ""
    return f"{name}: expected a text, number, list or mapping, not {type(value).__name__}"


def needed(name: str, source: Source) -> Source:
    """A file without which there is no job.

    Raises:
        TypeError: it is None.
    """
    if source is None:
        raise TypeError(f"{name}: {EXPECTED}, not None")
    return source


@contextlib.contextmanager
def opened(files: Mapping[str, Source | None]) -> Generator[dict[str, tuple[str, Any, str]], None, None]:
    """The files of a form. Those that are named by their paths are open until the block ends, and stream."""
    with contextlib.ExitStack() as stack:
        parts: dict[str, tuple[str, Any, str]] = {}
        for name, source in files.items():
            if source is None:
                continue
            if isinstance(source, (str, os.PathLike)):
                named = cast(str, os.fspath(source))
                try:
                    file = stack.enter_context(open(named, "rb"))
                    mode = os.fstat(file.fileno()).st_mode
                except (OSError, ValueError) as error:
                    raise TilewrightError(f"{named or repr(named)}: {reason(error)}") from None
                # Some have no end.
                if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                    raise TilewrightError(f"{named}: it is a device: name a file or a pipe")
                content = _sent(named, file)
            # As files, they are sent in pieces: httpx copies bytes as a whole, and more than once.
            elif isinstance(source, (bytes, bytearray, memoryview)):
                content = _sent(name, io.BytesIO(cast(bytes, source)))
            elif is_array(source):
                content = _sent(name, io.BytesIO(to_safetensors(TENSORS.get(name, name), source)))
            elif _is_binary(name, source):
                content = _sent(name, source)
            else:
                raise TypeError(f"{name}: {EXPECTED}, not {type(source).__name__}")
            parts[name] = (name, content, "application/octet-stream")
        yield parts


@contextlib.contextmanager
def opened_module(source: Source) -> Generator[dict[str, Any], None, None]:
    """The body and headers of a module, which is open until the block ends."""
    with opened({"module": needed("module", source)}) as parts:
        yield {"content": parts["module"][1].read(), "headers": {"content-type": "application/wasm"}}


class _Sent:
    """A file as it is sent: from where it stands to its end, whose length nobody knows."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self._name = name
        self._file = file

    def read(self, size: int = -1) -> bytes:
        """The next bytes; none at the end.

        Raises:
            TilewrightError: it can't be read.
        """
        try:
            return self._file.read(size)
        except (OSError, ValueError, EOFError) as error:
            raise TilewrightError(f"{self._name}: the file can't be read: {reason(error)}") from None


class _Measured(_Sent):
    """A file whose length is known, and which is sent so far even if it grows meanwhile."""

    def __init__(self, name: str, file: IO[bytes], length: int) -> None:
        super().__init__(name, file)
        self._length = self._left = length

    def read(self, size: int = -1) -> bytes:
        chunk = super().read(self._left if size < 0 else min(size, self._left))
        self._left -= len(chunk)
        if self._left and not chunk:
            raise TilewrightError(f"{self._name}: the file became shorter while it was sent")
        return chunk

    # httpx measures the length by these.

    def tell(self) -> int:
        """The place in what is sent, before it is."""
        return 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """The place that was asked for; it is read from where it is."""
        return offset + (self._length if whence == os.SEEK_END else 0)


def _sent(name: str, file: IO[bytes]) -> _Sent:
    """A file of any kind as it is sent."""
    length: int | None = None
    with contextlib.suppress(OSError, ValueError):
        if isinstance(file, io.BytesIO):
            length = len(file.getbuffer()) - file.tell()
        # What is unpacked as it is read has another length than the system says, and so has what the system makes up.
        elif isinstance(getattr(file, "raw", file), io.FileIO):
            status = os.fstat(file.fileno())
            length = status.st_size - file.tell() if stat.S_ISREG(status.st_mode) and status.st_size else None
    return _Sent(name, file) if length is None else _Measured(name, file, max(0, length))


def _is_binary(name: str, source: Any) -> bool:
    """True for an open file of bytes."""
    try:
        return hasattr(source, "read") and isinstance(source.read(0), bytes)
    except (OSError, ValueError) as error:
        raise TilewrightError(f"{name}: the file can't be read: {reason(error)}") from None


class Writing:
    """A file that is written."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self._name = name
        self._file = file

    def write(self, chunk: bytes) -> None:
        """
        Raises:
            TilewrightError: it can't be written.
        """
        try:
            self._file.write(chunk)
        except OSError as error:
            raise TilewrightError(f"{self._name}: {reason(error)}") from None


@contextlib.contextmanager
def written(path: str | os.PathLike[str], *, survives: bool = True) -> Generator[Writing, None, None]:
    """A file to write that gets its name only when all of it is there. What a link leads to is written, not the link.

    Args:
        survives: a power failure leaves it whole, too, which takes the disk some time.

    Raises:
        TilewrightError: it can't be written, or something else than a file has its name.
    """
    named = os.fspath(path)
    try:
        target = os.path.realpath(named)
        if os.path.exists(named):
            # A link of the system's may lead to a file that has no name any more.
            is_file = os.path.isfile(named) and os.path.exists(target) and os.path.samefile(named, target)
        else:
            is_file = bool(os.path.basename(named)) and not os.path.lexists(target)
        if not is_file:
            raise TilewrightError(f"{named or repr(named)}: it is no regular file: name another")
        unfinished = os.path.join(os.path.dirname(target), f".tilewright-{uuid.uuid4().hex}")
        file = open(unfinished, "xb")
    except (OSError, ValueError) as error:
        raise TilewrightError(f"{named}: {reason(error)}") from None
    try:
        # What the caller's own work raises meanwhile is no error of the file.
        yield Writing(named, file)
        try:
            file.flush()
            if survives:
                os.fsync(file.fileno())
            file.close()
            os.replace(unfinished, target)
        except OSError as error:
            raise TilewrightError(f"{named}: {reason(error)}") from None
    except BaseException:
        with contextlib.suppress(OSError):
            file.close()
        os.unlink(unfinished)
        raise


def form(
    request: Mapping[str, Any] | api.JobRequest, parts: Mapping[str, tuple[str, Any, str]], key: str | None
) -> dict[str, Any]:
    """The body and headers of a submission.

    Raises:
        TilewrightError: no job has such a key, or a field has a value that JSON does not have.
    """
    expect("request", request, Mapping, api.JobRequest)
    expect("key", key, str, type(None))
    headers = {} if key is None else {"idempotency-key": key}
    if key is not None and not (key.isascii() and key.isprintable() and key.strip()):
        raise TilewrightError(f"key: expected printable ASCII, not {key!r}")
    if not parts:
        whole = body(request)
        return {**whole, "headers": {**whole["headers"], **headers}}
    files: list[tuple[str, tuple[str | None, Any, str]]] = [("request", (None, written_json(request), JSON))]
    files.extend((name, part) for name, part in parts.items())
    return {"files": files, "headers": headers}


# What comes back.


def reason(error: BaseException) -> str:
    """A foreign exception in words."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def fault(address: str, error: Exception, session: httpx.Client | httpx.AsyncClient) -> TilewrightError | None:
    """What one of `FOREIGN` is to callers; None if the connection broke or the server ends, of which an engine knows
    more."""
    if isinstance(error, RequestError):
        return None if str(error) == ENDING else error
    if isinstance(error, httpx.TransportError):
        return None
    if isinstance(error, RuntimeError):
        # Another thread or task has closed it meanwhile.
        if session.is_closed:
            return None
        raise error
    if isinstance(error, httpx.RequestError):
        return odd(address, error)
    # Its text may have a token in it.
    return TilewrightError(f"{without_password(address)}: the request can't be sent: {type(error).__name__}")


def odd(address: str, error: Exception) -> ConnectionFailed:
    """The error of an answer that is none of the interface's."""
    return ConnectionFailed(f"{without_password(address)}: answered something else than Tilewright's interface: {reason(error)}")


def broken(address: str, error: Exception) -> TilewrightError:
    """The error of a connection that broke, or of a server that ends."""
    if isinstance(error, RequestError):
        return error
    return ConnectionFailed(f"{without_password(address)}: {reason(error)}")


@contextlib.contextmanager
def understood(address: str) -> Generator[None, None, None]:
    """An answer is read meanwhile.

    Raises:
        ConnectionFailed: it is none of the interface's.
    """
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise odd(address, error) from None


def message(address: str, kind: type[MessageT], content: bytes) -> MessageT:
    """The message that an answer is.

    Raises:
        ConnectionFailed: it is something else.
    """
    with understood(address):
        return kind.from_json(content)


def mapping(address: str, content: bytes) -> dict[str, Any]:
    """The object that an answer is.

    Raises:
        ConnectionFailed: it is something else.
    """
    with understood(address):
        return _object(content)


def _object(text: str | bytes) -> dict[str, Any]:
    found: Any = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("expected a JSON object")
    return cast("dict[str, Any]", found)


def check(response: httpx.Response) -> httpx.Response:
    """The response, whose body was read if it is an error's.

    Raises:
        RequestError: the server refused.
    """
    if response.is_success:
        return response
    try:
        line = str(response.json()["detail"])
    except (ValueError, KeyError, TypeError, RecursionError):
        line = f"{response.status_code} {response.reason_phrase}"
    wait = response.headers.get("retry-after", "")
    # A date says nothing without the server's clock.
    seconds = float(wait) if wait.isascii() and wait.isdecimal() else None
    raise RequestError(line, response.status_code, seconds)


class Events:
    """A job's server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html), as they arrive."""

    def __init__(self, address: str, response: httpx.Response) -> None:
        self._address = address
        self._rest = b""
        self._name = "message"
        self._data: list[bytes] = []
        #: The job as it is after the last event that tells of it.
        self.job: api.Job | None = None
        with understood(address):
            kind = response.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                raise ValueError(f"no events, but {kind or 'a file'}")

    def add(self, chunk: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
        """Takes a piece of the stream, and gives the events that are whole by then.

        Raises:
            ConnectionFailed: they are none of a job's.
        """
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            with understood(self._address):
                event = self._add_line(line.removesuffix(b"\r"))
            if event is not None:
                yield event

    def check_end(self) -> None:
        """Refuses the end of the stream if it is not the job's.

        Raises:
            EarlyEnd: the job goes on.
        """
        if self.job is None or self.job.state not in ENDS:
            raise EarlyEnd

    def _add_line(self, line: bytes) -> tuple[str, dict[str, Any]] | None:
        """An empty line completes an event."""
        if line:
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"event":
                self._name = value.decode()
            elif field == b"data":
                self._data.append(value)
            return None
        name, data = self._name, self._data
        self._name, self._data = "message", []
        if not data:
            return None
        found = _object(b"\n".join(data))
        if name in ("job", "end"):
            self.job = api.Job.from_json(found)
        return name, found


def ended(job: api.Job) -> api.Job:
    """A job that ended well.

    Raises:
        JobFailed: it has no result.
    """
    if job.state == "done":
        return job
    raise JobFailed(job.error or f"the job was {job.state}", job.id, job.state)
