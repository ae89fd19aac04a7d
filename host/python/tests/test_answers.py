"""Servers that answer with anything, and requests that can't be sent: one line of this package's for callers of both
kinds."""

from __future__ import annotations

import asyncio
import gzip
import inspect
import io
import json
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import tilewright
from test_streams import JOB
from tilewright import _wire

#: Answers with status 200 that are none of the interface's, with further headers.
ODD: list[tuple[bytes, dict[str, str]]] = [
    (b"<html>hello</html>", {"content-type": "text/html"}),
    (b"", {}),
    (b"\0", {}),
    (b"\xff\xfe{}", {}),
    (b"{}", {}),
    (b"null", {}),
    (b"[]", {}),
    (b'"text"', {}),
    (b"[" * 200_000, {}),
    (b'{"models": 5, "devices": null, "decisions": {}, "policies": "", "jobs": [3], "events": 0, "ready": 1}', {}),
    (json.dumps({**JOB, "id": 5, "state": "running"}).encode(), {}),
    (b"no gzip", {"content-encoding": "gzip"}),
    (gzip.compress(b"[]"), {"content-encoding": "gzip"}),
]

#: Streams of events that are none.
ODD_EVENTS = [
    b"event: job\ndata: {}\n\n",
    b"event: job\ndata: no JSON\n\n",
    b"event: end\ndata: [1]\n\n",
    b"event: step\ndata: 5\n\n",
    b"event: \xff\n",
]

#: A job whose prompt has what other line readers take for the end of a line.
TEXT = {**JOB, "state": "running", "prompt": "a\u2028b\x85c"}


class Anything(BaseHTTPRequestHandler):
    """A server that gives one answer to all requests, and remembers their paths."""

    protocol_version = "HTTP/1.1"
    status = 200
    body = b""
    headers_: dict[str, str] = {}
    events: bytes | None = None
    paths: list[str] = []

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.paths.append(self.path)
        body, headers = self.body, self.headers_
        if self.events is not None:
            is_followed = self.path.endswith("/events")
            body = self.events if is_followed else json.dumps(TEXT, ensure_ascii=False).encode()
            headers = {"content-type": "text/event-stream" if is_followed else "application/json"}
        self.send_response(self.status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.status != 204:
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_DELETE = _answer


@pytest.fixture
def address() -> Iterator[str]:
    Anything.status, Anything.headers_, Anything.events = 200, {}, None
    Anything.paths.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Anything) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


#: Each method that reads an answer, of either client.
ASKED: list[Callable[[Any], Any]] = [
    lambda client: client.submit({"model": "a"}),
    lambda client: client.generate("a", model="a"),
    lambda client: client.decode(b"", model="a"),
    lambda client: client.job("1"),
    lambda client: client.models(),
    lambda client: client.devices(),
    lambda client: client.decisions(limit=1),
    lambda client: client.policies(),
    lambda client: client.policy("own"),
    lambda client: client.upload_policy(b""),
    lambda client: client.swap_policy("own", "fixed"),
    lambda client: client.roll_back_policy("own"),
]

#: Each of a job.
ASKED_OF_JOB: list[Callable[[Any], Any]] = [
    lambda job: job.refresh(),
    lambda job: job.wait(),
    lambda job: job.cancel(),
    lambda job: job.result(),
    lambda job: job.array(),
    lambda job: job.decision(),
]


def job_of(address: str, state: dict[str, Any] = TEXT) -> tilewright.Job:
    return tilewright.Job(tilewright.Client(address).connection, tilewright.client.api.Job.from_json(state))


async def awaited(address: str, ask: Callable[[Any], Awaitable[Any]], *, is_of_job: bool = False) -> Any:
    async with tilewright.AsyncClient(address) as client:
        of = tilewright.AsyncJob(client.connection, tilewright.client.api.Job.from_json(TEXT)) if is_of_job else client
        return await ask(of)


def run(address: str, ask: Callable[[Any], Awaitable[Any]], *, is_of_job: bool = False) -> Any:
    return asyncio.run(awaited(address, ask, is_of_job=is_of_job))


async def listed(address: str) -> list[Any]:
    async with tilewright.AsyncClient(address) as client:
        return [job async for job in client.jobs()]


def test_both_clients_have_the_same_methods() -> None:
    def names(kind: type[Any]) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    for one, other in ((tilewright.Client, tilewright.AsyncClient), (tilewright.Job, tilewright.AsyncJob)):
        assert names(one) == names(other)
        for name in names(one):
            there = [getattr(kind, name) for kind in (one, other)]
            if inspect.isfunction(there[0]):
                first, second = [list(inspect.signature(function).parameters) for function in there]
                assert first == second, name


@pytest.mark.parametrize("number", range(len(ODD)))
def test_other_servers_are_told_from_this_one(address: str, number: int) -> None:
    Anything.body, Anything.headers_ = ODD[number]
    words = f"^{address}: answered something else than Tilewright's interface: "
    with tilewright.Client(address) as client:
        works: list[Callable[[], Any]] = [partial(ask, client) for ask in ASKED]
        works += [partial(run, address, ask) for ask in ASKED]
        # A decision may be any object.
        of_job = ASKED_OF_JOB[:-1] if Anything.body.startswith(b"{") else ASKED_OF_JOB
        works += [partial(ask, job_of(address)) for ask in of_job]
        works += [lambda: next(client.jobs()), lambda: asyncio.run(listed(address))]
        for work in works:
            with pytest.raises(tilewright.ConnectionFailed, match=words) as error:
                work()
            assert str(error.value).isprintable()
        assert not client.is_ready()
        assert not run(address, lambda client: client.is_ready())


def test_no_content_is_no_answer(address: str) -> None:
    Anything.status, Anything.body = 204, b""
    for work in (tilewright.Client(address).models, lambda: run(address, lambda client: client.models())):
        with pytest.raises(tilewright.ConnectionFailed, match="something else"):
            work()


@pytest.mark.parametrize("events", ODD_EVENTS)
def test_events_are_a_jobs(address: str, events: bytes) -> None:
    Anything.events = events
    for work in (job_of(address).wait, lambda: run(address, lambda job: job.wait(), is_of_job=True)):
        with pytest.raises(tilewright.ConnectionFailed, match=f"^{address}: answered something else"):
            work()


def test_events_hold_any_text(address: str) -> None:
    end = {**TEXT, "state": "done"}
    told = [("job", TEXT), ("end", end)]
    Anything.events = b": alive\r\n\r\n" + "".join(
        f"event: {name}\r\ndata: {json.dumps(data, ensure_ascii=False)}\r\n\r\n" for name, data in told
    ).encode()
    job = job_of(address)
    seen = [(name, data, job.state.state) for name, data in job.events()]
    assert seen == [("job", TEXT, "running"), ("end", end, "done")]


def test_a_stream_that_ends_early_is_a_broken_one(address: str) -> None:
    Anything.events = f"event: job\ndata: {json.dumps(TEXT)}\n\n".encode()
    for work in (job_of(address).wait, lambda: run(address, lambda job: job.wait(), is_of_job=True)):
        with pytest.raises(tilewright.ConnectionFailed, match="the server ended; the job goes on when it is back"):
            work()


def test_refusals_are_one_line_whatever_they_hold(address: str) -> None:
    Anything.status = 429
    for wait, seconds in (("7", 7.0), ("\u00b2", None), ("-1", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("", None)):
        Anything.headers_ = {"retry-after": wait}
        for body, line in [
            (b'{"detail": "no\\nroom\\u001b[31m \\ud800"}', r"no\nroom\x1b[31m \ud800"),
            (b"<html>", "429 Too Many Requests"),
            (b"[" * 200_000, "429 Too Many Requests"),
        ]:
            Anything.body = body
            with pytest.raises(tilewright.RequestError) as error:
                tilewright.Client(address).models()
            assert (str(error.value), error.value.retry_after) == (line, seconds)


def test_names_are_a_part_of_a_path(address: str) -> None:
    Anything.body = b"{}"
    client = tilewright.Client(address)
    for name, escaped in [
        ("a/b?c#d", "a%2Fb%3Fc%23d"),
        ("../v1/jobs", "..%2Fv1%2Fjobs"),
        ("%2e%2e", "%252e%252e"),
        ("\u00e9\n", "%C3%A9%0A"),
    ]:
        Anything.paths.clear()
        asked: list[Callable[[], Any]] = [
            lambda: client.job(name),
            lambda: client.policy(name),
            lambda: client.swap_policy(name),
            lambda: run(address, lambda client: client.job(name)),
            lambda: run(address, lambda client: client.roll_back_policy(name)),
            job_of(address, {**TEXT, "id": name}).preview,
        ]
        for work in asked:
            try:
                work()
            except tilewright.ConnectionFailed as error:
                assert "something else" in str(error)
        kinds = ["jobs/{}", "policies/{}", "policies/{}/swap", "jobs/{}", "policies/{}/rollback", "jobs/{}/preview"]
        assert Anything.paths == [f"/v1/{kind.format(escaped)}" for kind in kinds]
    for name in ("", ".", ".."):
        for work in (lambda: client.job(name), lambda: client.policy(name), lambda: client.roll_back_policy(name)):
            with pytest.raises(tilewright.TilewrightError, match="is no name or id"):
                work()
    with pytest.raises(TypeError, match="expected str, not int"):
        client.job(5)  # type: ignore[arg-type]


def test_wrong_addresses_and_tokens_are_one_line(tmp_path: Path) -> None:
    for kind in (tilewright.Client, tilewright.AsyncClient):
        for wrong in ("http://[::1", "http://a\nb", "http://a:99999", "http://", "ftp://a", "a", "unix:/a\0", "http://\u2028", "http://xn--a.b:1"):
            with pytest.raises(tilewright.TilewrightError, match="expected http://") as error:
                kind(wrong)
            assert str(error.value).isprintable()
        for wrong in ("secr\u00e9t", "secret\n", "\ud800secret"):
            with pytest.raises(tilewright.TilewrightError, match="^token: ") as error:
                kind("http://a", token=wrong)
            assert "secr" not in str(error.value)
        unknown = kind(f"http://{70 * 'a'}")
        with pytest.raises(tilewright.TilewrightError, match=70 * "a"):
            run_of(unknown)
        with pytest.raises(TypeError, match="address: expected str or None, not int"):
            kind(5)  # type: ignore[arg-type]
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    for verify, words in (("/nope", "/nope: No such file"), (str(nothing), f"{nothing}: expected certificates in PEM")):
        with pytest.raises(tilewright.TilewrightError, match=words):
            tilewright.Client("https://127.0.0.1:1", verify=verify).models()
        with pytest.raises(tilewright.TilewrightError, match=words):
            asyncio.run(tilewright.AsyncClient("https://127.0.0.1:1", verify=verify).models())


def run_of(client: tilewright.Client | tilewright.AsyncClient) -> None:
    """Asks a client of either kind something."""
    found = client.models()
    if inspect.isawaitable(found):

        async def wait() -> None:
            await found

        asyncio.run(wait())


def test_a_clients_certificates_are_the_loops_too() -> None:
    for token in (None, "secret"):
        of = tilewright.AsyncClient(tilewright.Client("https://127.0.0.1:1", token=token, verify="/nope"))
        with pytest.raises(tilewright.TilewrightError, match="/nope: No such file"):
            run_of(of)


def test_passwords_are_not_printed(address: str) -> None:
    Anything.body = b"<html>"
    named = address.replace("://", "://user:s@cret@")
    for of in (named, "http://user:s@cret@127.0.0.1:1"):
        client = tilewright.Client(of)
        with pytest.raises(tilewright.ConnectionFailed, match="^http://127.0.0.1") as error:
            client.models()
        assert "cret" not in str(error.value) + repr(client) + repr(tilewright.AsyncClient(of))
    for wrong in ("http://user:secret@[::1", "http://user:sec/ret@a", "user:secret@a"):
        with pytest.raises(tilewright.TilewrightError) as error:
            tilewright.Client(wrong).models()
        assert "sec" not in str(error.value) and "ret" not in str(error.value)


def test_fields_that_cannot_be_sent_are_named(address: str) -> None:
    client = tilewright.Client(address)
    circle: dict[str, Any] = {}
    circle["a"] = circle
    for work, words in [
        (lambda: client.generate("a", model="a", sample={"cfg": float("nan")}), "sample.cfg: nan is no number"),
        (lambda: client.generate("a", model="a", sample={"sigmas": [1, float("inf")]}), r"sample.sigmas\[1\]: inf"),
        (lambda: client.generate("\ud800", model="a"), "prompt: '.ud800' is no text"),
        (lambda: client.generate("\ud800", model="a", image=b""), "prompt: '.ud800' is no text"),
        (lambda: client.generate(b"a cat", model="a"), "prompt: expected a text, .* not bytes"),  # type: ignore[arg-type]
        (lambda: client.swap_policy("own", settings={"tile": float("nan")}), "settings.tile: nan"),
        (lambda: client.submit(circle), "Circular"),
        (lambda: next(client.jobs(q="\ud800")), "q: '.ud800' is no text"),
    ]:
        with pytest.raises(tilewright.TilewrightError, match=words) as error:
            work()
        assert str(error.value).isprintable() and not isinstance(error.value, tilewright.ConnectionFailed)
    closed = io.BytesIO()
    closed.close()
    with pytest.raises(tilewright.TilewrightError, match="latent: the file can't be read"):
        client.decode(closed, model="a")
    for mistaken, words in [
        (lambda: client.upload_policy(None), "module: expected a path, bytes, a binary file or an array, not None"),
        (lambda: client.decode(io.StringIO(), model="a"), "latent: expected a path, .*a binary file.*, not StringIO"),
        (lambda: client.submit("a"), "request: expected Mapping or JobRequest, not str"),  # type: ignore[arg-type]
        (lambda: client.submit({}, [1]), "files: expected Mapping or None"),  # type: ignore[arg-type]
        (lambda: client.generate("a", model="a", sample=[1]), "sample: expected Mapping"),  # type: ignore[arg-type]
        (lambda: client.swap_policy("own", 5), "module: expected str or PathLike"),  # type: ignore[arg-type]
        (lambda: client.swap_policy("own", settings={"tile": None}), "settings: 'tile': expected bool"),
    ]:
        with pytest.raises(TypeError, match=words):
            mistaken()
    assert Anything.paths == []


def test_a_module_is_named_or_sent(address: str, tmp_path: Path) -> None:
    client = tilewright.Client(address)
    for named in ("fixed", "sha256:0", "oci://host/of/own.wasm"):
        with pytest.raises(tilewright.ConnectionFailed):
            client.swap_policy("own", named)
    for path in (tmp_path / "own.wasm", tmp_path / "own", str(tmp_path / "own.wasm")):
        with pytest.raises(tilewright.TilewrightError, match="own.*: No such file"):
            client.swap_policy("own", path)
    assert Anything.paths == 3 * ["/v1/policies/own/swap"]


def test_settings_have_names_as_in_python(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []

    def read(kind: type[Any], method: str, path: str, *, content: bytes, headers: dict[str, str]) -> None:
        sent.append(content)

    client = tilewright.Client(address)
    monkeypatch.setattr(client.connection, "read", read)
    client.swap_policy("own", settings={"min_tile": 64})
    assert json.loads(sent[0]) == {"settings": {"min-tile": 64}}


def test_what_a_caller_raises_is_no_error_of_the_file(tmp_path: Path) -> None:
    for raised in (TimeoutError("enough"), ValueError("wrong"), KeyboardInterrupt()):
        with pytest.raises(type(raised)) as error, _wire.written(tmp_path / "file"):
            raise raised
        assert error.value is raised
    with pytest.raises(tilewright.TilewrightError, match="file: No such file"), _wire.written(tmp_path / "none" / "file"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_results_replace_files_alone(address: str, tmp_path: Path) -> None:
    Anything.body = b"made"
    job = job_of(address, {**TEXT, "state": "done"})
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "gone").open("wb") as gone:
        (tmp_path / "gone").unlink()
        open_file = f"/proc/self/fd/{gone.fileno()}"
        for path in (tmp_path, tmp_path / "pipe", "/dev/null", open_file, f"{tmp_path / 'new'}/", "", "a\0b"):
            with pytest.raises(tilewright.TilewrightError):
                job.save(path)
    (tmp_path / "folder").mkdir()
    for link, target in (("link", "folder/file"), ("later", "folder/none")):
        (tmp_path / link).symlink_to(target)
    (tmp_path / "folder" / "file").write_bytes(b"before")
    for link in ("link", "later"):
        assert job.save(tmp_path / link).read_bytes() == b"made" and (tmp_path / link).is_symlink()
    assert {path.name for path in (tmp_path / "folder").iterdir()} == {"file", "none"}
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "link", "later", "pipe"}
