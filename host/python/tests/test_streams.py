"""Files of jobs larger than what may be held in memory, by a server that only counts bytes."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import json
import os
import pickle
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy
import pytest

import tilewright
from tilewright._tensors import from_safetensors, to_safetensors

MIB = 2**20

#: Bytes of a file that is sent.
LARGE = 256 * MIB

#: Bytes of an array, all of whose values someone has to hold.
ARRAY = 64 * MIB

#: The most bytes that may be held for a file of any size.
MOST = 4 * MIB

JOB: dict[str, Any] = {
    "at": None, "batch": 1, "canary": False, "created": "2026-11-29T12:00:00Z", "device": "main", "digest": "sha256:0",
    "format": "png", "frames": 1, "height": 64, "id": "1", "model": "picture", "policy": "own", "results": [],
    "revision": 1, "route": "own", "state": "done", "width": 64, "stage": "decode",
}  # fmt: skip


class Counting(BaseHTTPRequestHandler):
    """A server whose job is done as soon as it is there; `id` says what its result is."""

    protocol_version = "HTTP/1.1"
    received: list[int] = []
    keys: list[str | None] = []
    tensor = b""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        _, _, _, id, *rest = self.path.split("?")[0].split("/")
        if not rest:
            self._answer(json.dumps({**JOB, "id": id}).encode())
        elif id == "array":
            self._answer(self.tensor)
        else:
            self.send_response(200)
            self.send_header("content-length", str(LARGE))
            self.end_headers()
            chunk = bytes(MIB)
            for _ in range((LARGE if id == "whole" else LARGE // 2) // MIB):
                self.wfile.write(chunk)
            self.close_connection = id != "whole"

    def do_POST(self) -> None:
        self.keys.append(self.headers["idempotency-key"])
        if self.headers["transfer-encoding"] == "chunked":
            self.received.append(0)
            while size := int(self.rfile.readline(), 16):
                self.received[-1] += len(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
        else:
            left = int(self.headers["content-length"])
            self.received.append(left)
            while left > 0 and (chunk := self.rfile.read(min(left, MIB))):
                left -= len(chunk)
            self.close_connection = left > 0
        self._answer(json.dumps(JOB).encode())


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    Counting.tensor = to_safetensors("sample", numpy.zeros(ARRAY // 4, numpy.float32))
    with ThreadingHTTPServer(("127.0.0.1", 0), Counting) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large.latent"
    with path.open("wb") as file:
        file.truncate(LARGE)
    return path


def held(work: Callable[[], object]) -> int:
    """The most bytes that Python's objects took meanwhile, beyond those before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_results_are_written_as_they_arrive(address: str, tmp_path: Path) -> None:
    path = tmp_path / "result"

    async def save() -> None:
        async with tilewright.AsyncClient(address) as client:
            await (await client.job("whole")).save(path)

    with tilewright.Client(address) as client:
        for work in (lambda: client.job("whole").save(path), lambda: asyncio.run(save())):
            assert held(work) < MOST
            assert path.stat().st_size == LARGE
            path.unlink()


def test_half_a_result_is_no_file(address: str, tmp_path: Path) -> None:
    async def save() -> None:
        async with tilewright.AsyncClient(address) as client:
            await (await client.job("half")).save(tmp_path / "result")

    with tilewright.Client(address) as client:
        for work in (lambda: client.job("half").save(tmp_path / "result"), lambda: asyncio.run(save())):
            with pytest.raises(tilewright.ConnectionFailed) as error:
                work()
            assert "\n" not in str(error.value) and list(tmp_path.iterdir()) == []


def test_files_are_sent_as_they_are_read(address: str, latent: Path) -> None:
    async def decode() -> None:
        async with tilewright.AsyncClient(address) as client:
            await client.decode(latent, model="picture")

    def decode_open() -> None:
        with latent.open("rb") as file:
            client.decode(file, model="picture")

    with tilewright.Client(address) as client:
        for work in (lambda: client.decode(latent, model="picture"), lambda: asyncio.run(decode()), decode_open):
            assert held(work) < MOST
            # The form's own lines come on top.
            assert LARGE < Counting.received[-1] < LARGE + 2000


def test_files_of_any_kind_are_sent_from_where_they_stand(address: str, tmp_path: Path) -> None:
    zipped = tmp_path / "zipped"
    zipped.write_bytes(gzip.compress(bytes(MIB)))
    (tmp_path / "plain").write_bytes(bytes(MIB))
    os.mkfifo(tmp_path / "pipe")

    def fill() -> None:
        (tmp_path / "pipe").write_bytes(bytes(MIB))

    async def decode(file: Any) -> None:
        async with tilewright.AsyncClient(address) as client:
            await client.decode(file, model="picture")

    with tilewright.Client(address) as client:
        sends: list[Callable[[Any], object]] = [
            lambda file: client.decode(file, model="picture"),
            lambda file: asyncio.run(decode(file)),
        ]
        for send in sends:
            for by_path in (True, False):
                filling = threading.Thread(target=fill)
                filling.start()
                with contextlib.ExitStack() as stack:
                    send(tmp_path / "pipe" if by_path else stack.enter_context((tmp_path / "pipe").open("rb")))
                filling.join()
                assert MIB < Counting.received[-1] < MIB + 2000
            with gzip.open(zipped) as file:
                send(file)
            assert MIB < Counting.received[-1] < MIB + 2000
            with (tmp_path / "plain").open("rb") as file:
                file.seek(MIB - 10)
                send(file)
            assert 10 < Counting.received[-1] < 2000
            with gzip.open(tmp_path / "plain") as file, pytest.raises(tilewright.TilewrightError, match="can't be read"):
                send(file)


def test_a_file_that_changes_while_it_is_sent_is_said(address: str, tmp_path: Path) -> None:
    class Changing(io.FileIO):
        to = 0

        def read(self, size: int | None = -1, /) -> bytes:
            if size:
                os.truncate(self.name, self.to)
            return super().read(size) or b""

    path = tmp_path / "changing"
    with tilewright.Client(address) as client:
        for to in (0, 2 * MIB):
            path.write_bytes(bytes(MIB))
            with Changing(path) as file:
                file.to = to
                if to:
                    client.decode(file, model="picture")
                    assert MIB < Counting.received[-1] < MIB + 2000
                else:
                    with pytest.raises(tilewright.TilewrightError, match="latent: the file became shorter"):
                        client.decode(file, model="picture")


def test_devices_are_no_files(address: str) -> None:
    with tilewright.Client(address) as client:
        for device in ("/dev/zero", "/dev/null"):
            with pytest.raises(tilewright.TilewrightError, match=f"^{device}: it is a device"):
                client.decode(device, model="picture")


def test_arrays_of_another_range_are_refused(address: str) -> None:
    picture = numpy.zeros((1, 3, 8, 8), numpy.uint8)
    with tilewright.Client(address) as client:
        for image in (picture, picture.astype(bool)):
            with pytest.raises(TypeError, match=r"^image: a picture in .1.1 was expected, not .*: of 0.255 it is x / 127.5 - 1"):
                client.encode(image, model="picture")
        for mask in (picture + 255, picture - 1.0, picture * numpy.nan):
            with pytest.raises(TypeError, match="^mask: values in 0.1 were expected"):
                client.generate("a", model="picture", image=picture / 255, mask=mask)
        client.generate("a", model="picture", image=picture / 127.5 - 1, mask=picture + 1)


def test_clients_are_pickled_and_jobs_are_not(address: str) -> None:
    client = pickle.loads(pickle.dumps(tilewright.Client(address, token="secret")))
    assert client.job("1").id == "1" and client.connection.token == "secret"
    with pytest.raises(TypeError, match="a job stays with its client"):
        pickle.dumps(client.job("1"))


def test_a_key_is_the_callers(address: str) -> None:
    with tilewright.Client(address) as client:
        client.submit({"model": "picture"}, {"latent": b""}, key="mine")
        client.submit({"model": "picture"})
        assert Counting.keys[-2:] == ["mine", None]
        for wrong in ("", "a\nb", "\u00e9"):
            with pytest.raises(tilewright.TilewrightError, match="^key: expected printable ASCII"):
                client.submit({"model": "picture"}, key=wrong)


def test_a_fork_has_connections_of_its_own(address: str) -> None:
    with tilewright.Client(address) as client:
        assert client.job("parents").id == "parents"
        session = client.connection.session()
        child = os.fork()
        if child == 0:
            # Nothing of pytest's may run here.
            try:
                is_own = client.job("childs").id == "childs" and client.connection.session() is not session
            except BaseException:
                is_own = False
            os._exit(0 if is_own else 1)
        assert client.job("parents").id == "parents" and client.connection.session() is session
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_arrays_are_held_once(address: str) -> None:
    async def array() -> numpy.ndarray[Any, Any]:
        async with tilewright.AsyncClient(address) as client:
            return await (await client.job("array")).array()

    with tilewright.Client(address) as client:
        for work in (lambda: client.job("array").array(), lambda: asyncio.run(array())):
            found: list[numpy.ndarray[Any, Any]] = []
            assert held(lambda: found.append(work())) < 1.25 * ARRAY + MOST
            assert found[0].nbytes == ARRAY and found[0].flags.writeable
        values = numpy.zeros((1, 16, ARRAY // 64), numpy.float32)
        assert held(lambda: client.decode(values, model="picture")) < ARRAY + MOST


def test_arrays_go_there_and_back() -> None:
    arrays: tuple[numpy.ndarray[Any, Any], ...] = (
        numpy.full((1, 2, 3), 0.5),
        numpy.zeros((0, 4)),
        numpy.full(1, 3.0, numpy.float32),
        numpy.ones(3, numpy.float16),
        numpy.arange(12, dtype=numpy.float32)[::2],
    )
    for values in arrays:
        found = from_safetensors(to_safetensors("sample", values), ("sample",))
        assert found.dtype == numpy.float32 and found.tolist() == values.tolist()
    for wrong, words in (
        (numpy.ones(2, complex), "latent: real numbers were expected, not complex128"),
        (numpy.array(["a"]), "latent: real numbers were expected"),
    ):
        with pytest.raises(TypeError, match=words):
            to_safetensors("latent", wrong)
    unknown = to_safetensors("sample", numpy.ones(2, numpy.float16)).replace(b'"F16"', b'"F8_"')
    for wrong, words in ((unknown, "in F8_"), (b"", "no safetensors file"), (to_safetensors("a", numpy.ones(1)), "no tensor")):
        with pytest.raises(tilewright.TilewrightError, match=words):
            from_safetensors(wrong, ("sample",))


def safetensors(header: bytes, values: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + values


def test_damaged_results_are_said() -> None:
    whole = to_safetensors("sample", numpy.ones((2, 3), numpy.float32))
    header = '{{"sample": {{"dtype": "F32", "shape": {}, "data_offsets": {}}}}}'
    wrong = [
        whole[:-1],
        safetensors(b"no JSON"),
        safetensors(b"\xff\xff"),
        safetensors(b"[" * 200_000),
        safetensors(b"[1]"),
        safetensors(b'["sample"]'),
        safetensors(b'{"sample": null}'),
        safetensors(b'{"sample": {"dtype": []}}'),
        *(
            safetensors(header.format(shape, offsets).encode(), bytes(8))
            for shape, offsets in [("[2]", "[0, 4]"), ("[2]", "[4, 12]"), ("[-2]", "[8, 0]"), ("[2]", "[-4, 4]"), ("[2]", "8"),
                                   ('"ab"', "[0, 8]"), ("[1e400]", "[0, 8]"), ("[2, null]", "[0, 8]"), ("null", "[0, 8]"),
                                   (f"[{10**30}]", f"[0, {4 * 10**30}]")]
        ),
    ]  # fmt: skip
    for data in (*(whole[:count] for count in range(len(whole))), *wrong):
        with pytest.raises(tilewright.TilewrightError, match="the result (is|has)"):
            from_safetensors(data, ("sample",))
