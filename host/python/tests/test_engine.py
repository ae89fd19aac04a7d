"""The program as a child: jobs of every kind, threads, asyncio, crashes, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import pickle
import signal
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest

import stress_engine
import tilewright
from conftest import EXAMPLES, MODELS, VAE
from tilewright import api
from tilewright import engine as module
from tilewright._tensors import from_safetensors

LATENT = EXAMPLES / "latents" / "astronaut.latent"
#: Kills of each kind; `stress_engine.py` has more.
KILLS = int(os.environ.get("TILEWRIGHT_KILLS", "3"))

SMALL: api.SampleOptions = {"width": 64, "height": 64, "steps": 2, "seed": 3}


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def await_end(pid: int, seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while lives(pid):
        assert time.monotonic() < until, f"{pid} does not end"
        time.sleep(0.01)


def by_hand(arguments: list[str], output: Path) -> bytes:
    program = os.environ["TILEWRIGHT_PROGRAM"]
    subprocess.run([program, *arguments, "--device", "cpu", "-o", output], check=True, capture_output=True)
    return output.read_bytes()


def test_a_prompt_becomes_a_picture(engine: tilewright.Engine, tmp_path: Path) -> None:
    seen: list[str] = []
    job = engine.generate("a red circle on a blue square", model="shapes", sample={**SMALL, "preview": True})
    job.wait(lambda name, data: seen.append(name))
    assert job.state.state == "done" and {"plan", "step", "end"} <= set(seen)
    assert job.result().startswith(b"\x89PNG")
    assert job.save(tmp_path / "made.png").read_bytes() == job.result()
    assert [path.name for path in tmp_path.iterdir()] == ["made.png"]
    stages = [record["stage"] for record in job.decision()["stages"]]
    assert stages[-2:] == ["denoise", "decode"]
    assert next(iter(engine.jobs(limit=1))).id == job.id


def test_latents_are_files_bytes_or_arrays(engine: tilewright.Engine, tmp_path: Path) -> None:
    pictures = [
        engine.decode(source, model="picture", format="safetensors").array()
        for source in (LATENT, str(LATENT), LATENT.read_bytes(), LATENT.open("rb"))
    ]
    assert pictures[0].shape[:2] == (1, 3) and pictures[0].dtype == numpy.float32
    for picture in pictures[1:]:
        assert numpy.array_equal(picture, pictures[0])
    whole = by_hand(["decode", str(LATENT), "--vae", str(VAE)], tmp_path / "x.safetensors")
    assert numpy.array_equal(from_safetensors(whole, ("sample",)), pictures[0])
    # There and back: what an encode makes is taken as an array.
    latent = engine.encode(pictures[0], model="picture").array()
    assert latent.shape == (1, 16, pictures[0].shape[2] // 8, pictures[0].shape[3] // 8)
    again = engine.decode(latent, model="picture", format="safetensors").array()
    assert float(numpy.abs(again - pictures[0]).mean()) < 0.1
    with pytest.raises(TypeError, match="latent: expected a path"):
        engine.decode(3, model="picture")
    with pytest.raises(tilewright.TilewrightError, match="missing.latent: No such file"):
        engine.decode("missing.latent", model="picture")


def test_clips_are_encoded(engine: tilewright.Engine) -> None:
    clip = numpy.zeros((1, 3, 5, 32, 40), numpy.float32)
    assert engine.encode(clip, model="clip").array().shape == (1, 16, 2, 4, 5)
    assert engine.encode(clip, model="clip", frames=1).array().shape == (1, 16, 1, 4, 5)


def test_refusals_are_one_line(engine: tilewright.Engine) -> None:
    for refused, status, words in [
        (lambda: engine.decode(LATENT, model="none"), 422, "model: no 'none' is configured"),
        (lambda: engine.decode(b"no latent", model="picture"), 422, "latent: "),
        (lambda: engine.generate("a", model="picture"), 422, ""),
        (lambda: engine.job("none"), 404, ""),
        (lambda: engine.swap_policy("own", "none"), 422, ""),
    ]:
        with pytest.raises(tilewright.RequestError) as error:
            refused()
        assert error.value.status in (status, 400) and words in str(error.value) and "\n" not in str(error.value)


def test_jobs_are_cancelled(engine: tilewright.Engine) -> None:
    job = engine.generate("a cat", model="shapes", sample={"width": 512, "height": 512, "steps": 500})
    job.cancel()
    with pytest.raises(tilewright.JobFailed) as error:
        job.wait()
    assert (error.value.job, error.value.state) == (job.id, "cancelled")


def test_policies_are_swapped_and_rolled_back(engine: tilewright.Engine) -> None:
    before = engine.policy("own").in_force
    swapped = engine.swap_policy("own", "fixed", settings={"space": "exact", "tile": 128})
    assert swapped.in_force.number > before.number and swapped.in_force.name == "fixed"
    job = engine.decode(LATENT, model="picture").wait()
    assert job.decision()["plan"]["space"]["height"] == 128
    assert engine.roll_back_policy("own").in_force.number == before.number
    assert [policy.name for policy in engine.policies()] == ["own"]


def test_models_are_added_while_it_runs(fresh: tilewright.Engine) -> None:
    fresh.start()
    fresh.add_model("again", {"vae": EXAMPLES / "models" / "flux-tiny" / "ae.safetensors"})
    assert "again" in {model.name for model in fresh.models()}
    for wrong, words in [
        ({"vae": "missing.safetensors"}, "^missing.safetensors: is not there"),
        ({"invented": 1}, "^unknown field `invented`, expected one of `model`"),
    ]:
        with pytest.raises(tilewright.RequestError, match=words):
            fresh.add_model("wrong", wrong)
    with pytest.raises(tilewright.RequestError, match=r"^'a.nb' is no name"):
        fresh.add_model("a\nb", VAE)
    with pytest.raises(TypeError, match="'wrong': expected str or PathLike or Mapping, not NoneType"):
        fresh.add_model("wrong", None)  # type: ignore[arg-type]
    assert {model.name for model in fresh.models()} == {*MODELS, "again"}
    assert fresh.decode(LATENT, model="again").result()


def test_a_model_is_not_added_if_the_program_ends(fresh: tilewright.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh.start()
    write, pid = fresh.connection._write_again, fresh.pid  # pyright: ignore[reportPrivateUsage]
    assert pid is not None

    def write_and_kill() -> None:
        write()
        if lives(pid):
            os.kill(pid, signal.SIGKILL)
            await_end(pid)

    monkeypatch.setattr(fresh.connection, "_write_again", write_and_kill)
    began = time.monotonic()
    with pytest.raises(tilewright.ProgramEnded):
        fresh.add_model("again", VAE)
    assert time.monotonic() - began < module.START
    assert {model.name for model in fresh.models()} == set(MODELS)


def test_requests_go_on_while_a_model_is_added(fresh: tilewright.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh.start()
    write = fresh.connection._write_again  # pyright: ignore[reportPrivateUsage]
    seen: list[int] = []

    def write_later() -> None:
        with ThreadPoolExecutor(1) as pool:
            seen.append(len(pool.submit(fresh.models).result(60)))
        write()

    monkeypatch.setattr(fresh.connection, "_reload", lambda session, child: write_later())  # pyright: ignore
    fresh.add_model("again", VAE)
    assert seen == [len(MODELS)]


def test_threads_share_it(engine: tilewright.Engine) -> None:
    def generate(seed: int) -> tilewright.Job:
        return engine.generate("a cat", model="shapes", sample={**SMALL, "seed": seed % 2})

    with ThreadPoolExecutor(8) as pool:
        jobs = list(pool.map(generate, range(16)))
        results = list(pool.map(tilewright.Job.result, jobs))
    assert all(result.startswith(b"\x89PNG") for result in results)


def test_jobs_run_beside_each_other_in_a_loop(engine: tilewright.Engine, tmp_path: Path) -> None:
    async def all_of_them() -> list[bytes]:
        async with tilewright.AsyncClient(engine) as client:
            async def one(seed: int) -> bytes:
                seen: list[str] = []
                job = await client.generate("a cat", model="shapes", sample={**SMALL, "seed": seed})
                await job.wait(lambda name, data: seen.append(name))
                assert seen[-1] == "end"
                assert (await job.save(tmp_path / f"{seed}.png")).read_bytes() == await job.result()
                return await job.result()

            return await asyncio.gather(*map(one, range(8)))

    results = asyncio.run(all_of_them())
    assert len({*results}) == 8


def test_it_is_private(fresh: tilewright.Engine) -> None:
    fresh.start()
    folder = fresh.connection.folder
    assert folder is not None and stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(next(folder.glob("socket-*")).stat().st_mode) == 0o600
    with pytest.raises(tilewright.RequestError) as error:
        tilewright.Client(fresh.address, token="wrong").jobs().__next__()
    assert error.value.status == 401
    pid = fresh.pid
    fresh.close()
    assert not folder.exists() and pid is not None
    await_end(pid)
    with pytest.raises(tilewright.ProgramError, match="closed"):
        fresh.models()


def test_a_crash_is_an_exception_and_the_next_call_goes_on(fresh: tilewright.Engine) -> None:
    sample: api.SampleOptions = {"width": 256, "height": 256, "steps": 30, "seed": 1}
    job = fresh.generate("a cat", model="shapes", sample=sample)
    for _, _ in zip(range(3), job.events(), strict=False):
        pass
    assert fresh.pid is not None
    os.kill(fresh.pid, signal.SIGKILL)
    with pytest.raises(tilewright.ProgramEnded, match="by signal SIGKILL"):
        job.wait()
    assert job.wait().result().startswith(b"\x89PNG")
    assert job.state.state == "done"


def test_a_program_that_is_asked_to_end_has_ended(fresh: tilewright.Engine) -> None:
    sample: api.SampleOptions = {"width": 256, "height": 256, "steps": 5000, "seed": 1}
    jobs = [fresh.generate("a cat", model="shapes", sample=sample) for _ in range(2)]

    async def wait() -> None:
        async with tilewright.AsyncClient(fresh) as client:
            job = await client.job(jobs[1].id)
            async with contextlib.aclosing(job.events()) as events:
                await anext(events)
                waiting.append("async")
                async for _ in events:
                    pass

    def events() -> None:
        followed = jobs[0].events()
        next(followed)
        waiting.append("threads")
        list(followed)

    waiting: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(events), pool.submit(asyncio.run, wait())]
        while len(waiting) < 2:
            assert not any(call.done() for call in calls)
            time.sleep(0.01)
        first = fresh.pid
        assert first is not None
        os.kill(first, signal.SIGTERM)
        for call in calls:
            with pytest.raises(tilewright.ProgramEnded, match="the program (was )?ended"):
                call.result()
    assert fresh.models() and fresh.is_ready() and fresh.pid not in (None, first) and not lives(first)
    for job in jobs:
        assert job.refresh().state in ("queued", "running")
        job.cancel()


def test_what_is_submitted_while_it_ends_is_not_lost(fresh: tilewright.Engine) -> None:
    job = fresh.generate("a cat", model="shapes", sample={"width": 256, "height": 256, "steps": 5000})
    next(job.events())
    first = fresh.pid
    assert first is not None
    os.kill(first, signal.SIGTERM)
    # Until it has noticed, it takes jobs.
    while fresh.pid == first:
        with contextlib.suppress(tilewright.ProgramEnded):
            fresh.decode(LATENT, model="picture").cancel()
    assert job.refresh().state in ("queued", "running")
    job.cancel()


def test_a_crash_is_an_exception_in_a_loop(fresh: tilewright.Engine) -> None:
    async def crashed() -> None:
        async with tilewright.AsyncClient(fresh) as client:
            sample: api.SampleOptions = {"width": 128, "height": 128, "steps": 30, "seed": 1}
            made = (client.generate("a cat", model="shapes", sample=sample, format="safetensors") for _ in range(2))
            jobs = await asyncio.gather(*made)
            waiting = [asyncio.create_task(job.wait()) for job in jobs]
            await asyncio.sleep(0.2)
            assert fresh.pid is not None
            os.kill(fresh.pid, signal.SIGKILL)
            for error in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(error, tilewright.ProgramEnded) and "by signal SIGKILL" in str(error)
            first, second = await asyncio.gather(*(job.array() for job in jobs))
            # One went on, the other had not begun.
            assert first.shape == (1, 3, 128, 128) and numpy.array_equal(first, second)

    asyncio.run(crashed())


def test_a_kill_at_the_start_is_an_exception(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o755)
    engine = tilewright.Engine(program=program)
    with pytest.raises(tilewright.ProgramEnded, match=f"^{program}: it ended by signal SIGKILL before it listened$"):
        engine.start()
    engine.close()


def test_no_job_is_lost_when_the_child_is_killed() -> None:
    print(stress_engine.kill_children(KILLS, seed=1, pause=1.0))


def test_nothing_is_left_when_the_parent_is_killed() -> None:
    print(stress_engine.kill_parents(KILLS, seed=2, pause=0.5))


HALF_MADE = """
import time, tilewright, tilewright.engine as module
written = module.Child._write_config
module.Child._write_config = lambda *given: (written(*given), print("made", flush=True), time.sleep(60))
tilewright.Engine().start()
"""


def test_nothing_is_left_of_a_folder_that_is_half_made() -> None:
    with stress_engine.place() as place:
        with stress_engine.started(HALF_MADE, place) as parent:
            assert parent.stdout is not None and parent.stdout.readline() == "made\n"
            assert any(path.endswith("tilewright.toml") for path in place.left())
            parent.kill()
        place.await_nothing()


def test_a_folder_that_does_not_serve_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as place:
        long = Path(place) / ("long" * 30)
        long.mkdir()
        for folder, words in [
            (Path(place) / "missing", "missing: No such file or directory: name a folder .* in TMPDIR$"),
            (long, "a socket's path would have 1[0-9][0-9] bytes there, of 107 .* name a shorter folder in TMPDIR$"),
        ]:
            monkeypatch.setenv("TMPDIR", str(folder))
            engine = tilewright.Engine(device="cpu")
            with pytest.raises(tilewright.ProgramError, match=words):
                engine.start()
            assert engine.pid is None and engine.connection.folder is None


def test_an_engine_that_is_closed_stays_so(fresh: tilewright.Engine) -> None:
    for send in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="an engine stays in its process"):
            send(fresh)
    fresh.close()
    with pytest.raises(tilewright.ProgramError, match="the engine is closed"):
        fresh.add_model("again", VAE)


def test_what_waits_when_it_is_closed_ends(fresh: tilewright.Engine) -> None:
    job = fresh.generate("a cat", model="shapes", sample={"width": 512, "height": 512, "steps": 500})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(job.wait)
        next(job.events())
        fresh.close()
        with pytest.raises(tilewright.ProgramError, match="the engine (is|was) closed"):
            waiting.result(30)
    with pytest.raises(tilewright.ProgramError, match="closed"):
        job.refresh()


def test_an_engine_that_nobody_closed_leaves_nothing() -> None:
    with stress_engine.place() as place, place.in_force():
        engine = tilewright.Engine(MODELS, device="cpu")
        engine.start()
        assert place.left()
        del engine
        place.await_nothing()
        engine = tilewright.Engine({"a": "missing"}, device="cpu")
        with pytest.raises(tilewright.ProgramError, match="missing"):
            engine.start()
        del engine
        place.await_nothing()
        with pytest.raises(tilewright.ProgramError, match="missing"), tilewright.Engine({"a": "missing"}, device="cpu"):
            pass
        place.await_nothing()


def test_an_engine_belongs_to_its_process(fresh: tilewright.Engine) -> None:
    fresh.start()

    def refused() -> int:
        try:
            fresh.models()
        except tilewright.ProgramError as error:
            return 7 if "belongs to the process" in str(error) else 8
        return 9

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        forked = os.fork()
    if forked == 0:
        code = refused()
        fresh.close()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 7
    assert fresh.models()


def test_what_both_left_is_swept_by_the_next() -> None:
    with stress_engine.place() as place, place.in_force():
        # Killed before it could lock the folder, or after it.
        for name in ("a", "b"):
            (place.folder / f"{module.PREFIX}{name}").mkdir()
        (place.folder / f"{module.PREFIX}b" / "owner").touch()
        with tilewright.Engine(device="cpu") as first, tilewright.Engine(device="cpu") as second:
            folders = {first.connection.folder, second.connection.folder}
            assert {*place.folder.iterdir()} == folders
            # That of a process that works is left, whether its program does or not.
            assert first.pid is not None
            os.kill(first.pid, signal.SIGKILL)
            with tilewright.Engine(device="cpu"):
                assert {*place.folder.iterdir()} > folders
        place.await_nothing()


def test_bad_starts_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(text: str) -> str:
        path = tmp_path / "program"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    binary = tmp_path / "binary"
    binary.write_bytes(b"\x7fELF(")
    binary.chmod(0o755)
    with pytest.raises(tilewright.ProgramError, match=f"{binary}: .*Exec format error|{binary}: cannot execute|{binary}: .*yntax"):
        tilewright.Engine(program=binary).start()
    for text, words in [
        ("echo all is well", f"^{tmp_path}/program: all is well$"),
        ("echo not at all >&2; exit 3", f"^{tmp_path}/program: not at all$"),
        (r"printf 'error: the \033[31m sky\r\n' >&2; exit 3", r"^the .x1b.31m sky$"),
        ("kill -40 $$", f"^{tmp_path}/program: it ended by signal 40 before it listened$"),
        ("exec >&-; exit 4", "said nothing"),
        ("echo tilewright 9.9.0", "is version 9.9.0, and this package 0.1.0"),
        ("echo 'error: no libtorch 2.11 is here' >&2; exit 2", "no libtorch 2.11 is here"),
        ("exit 1", "program: it ended before it listened, and said nothing"),
        ("case $1 in --version) echo tilewright 0.1.7;; *) echo 'error: the disk is on fire' >&2; exit 1;; esac", "the disk is on fire"),
        ("case $1 in --version) echo tilewright 9.9.0;; *) echo 'error: --private?' >&2; exit 2;; esac", "is version 9.9.0"),
    ]:
        with pytest.raises(tilewright.ProgramError, match=words):
            tilewright.Engine(program=program(text)).start()
    with pytest.raises(tilewright.ProgramError, match="No such file"):
        tilewright.Engine(program=tmp_path / "missing").start()
    monkeypatch.setenv("TILEWRIGHT_PROGRAM", "missing")
    with pytest.raises(tilewright.ProgramError, match="TILEWRIGHT_PROGRAM: missing: no such program"):
        tilewright.Engine().start()
    monkeypatch.delenv("TILEWRIGHT_PROGRAM")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(tilewright.ProgramError, match="engine install"):
        tilewright.Engine().start()


SERVICE = """#!{python}
import http.server, os, re, socketserver, sys, threading

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = {body!r}
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self):
        return ""

with open(sys.argv[-3]) as file:
    listen = re.search('unix:([^"]+)', file.read())[1]

with socketserver.ThreadingUnixStreamServer(listen, Answer) as server:
    print("listening on", server.server_address, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
"""


def test_what_runs_has_to_be_of_the_same_version(tmp_path: Path) -> None:
    program = tmp_path / "program"
    for body, words in [
        (b'{"status": "alive", "version": "0.2.0"}', f"{program} is version 0.2.0, and this package 0.1.0"),
        (b'{"status": "alive"}', f"{program}: it does not say its version"),
        (b"no JSON", f"{program}: it does not say its version"),
        (b'{"status": "alive", "version": "0.1.7"}', ""),
    ]:
        program.write_text(SERVICE.format(python=sys.executable, body=body))
        program.chmod(0o755)
        engine = tilewright.Engine(program=program)
        if words:
            with pytest.raises(tilewright.ProgramError, match=words):
                engine.start()
            assert engine.pid is None
        else:
            engine.start()
            assert engine.pid is not None
        engine.close()


def test_a_model_that_is_missing_is_said() -> None:
    for name in ("/missing", "missing"):
        with pytest.raises(tilewright.ProgramError, match=f"^{name}: no such file"):
            tilewright.Engine({"a": name}, device="cpu").start()


def test_the_reason_of_an_end_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "program"
    for said, reason in [
        ("2026-11-30T02:30:48Z  INFO tilewright: listening", ""),
        ("2026-11-30T02:30:48Z ERROR tilewright: on fire\n2026-11-30T02:30:48Z  INFO tilewright: ending", ": .*ERROR.*on fire"),
        ("error: on fire", ": on fire"),
    ]:
        answer = SERVICE.format(python=sys.executable, body=b'{"status": "alive", "version": "0.1.0"}')
        dies = f"if self.path != '/healthz':\n            print({said!r}, file=sys.stderr, flush=True); os._exit(3)"
        program.write_text(answer.replace("        body =", f"        {dies}\n        body ="))
        program.chmod(0o755)
        with tilewright.Engine(program=program) as engine:
            words = f"^the program ended with status 3 in the middle of a request{reason}$"
            with pytest.raises(tilewright.ProgramEnded, match=words):
                engine.models()


def test_what_a_program_says_is_no_matter_before_it_listens(tmp_path: Path) -> None:
    program = tmp_path / "program"
    answer = SERVICE.format(python=sys.executable, body=b'{"status": "alive", "version": "0.1.0"}')
    program.write_text(answer.replace('    print("listening', '    print("loading")\n    print("listening'))
    program.chmod(0o755)
    with tilewright.Engine(program=program) as engine:
        assert engine.pid is not None


def test_a_configuration_is_merged_and_stays_private() -> None:
    config = {
        "server": {"limits": {"queue": 3}, "hosts": ["a.example"]},
        "devices": {"main": {"threads": 1}, "other": {"device": "cpu", "memory-limit": "2GiB"}},
        "policies": {"lean": {"source": "fixed"}},
        "routes": [{"name": "lean", "policy": "lean", "model": ["named"]}, {"name": "rest", "policy": "own"}],
        "models": {"named": {"vae": str(VAE)}},
    }
    others: dict[str, Any] = {"device": "cpu", "memory_limit": 3 * 2**30, "settings": {"min_tile": 128}}
    with tilewright.Engine({"picture": {"vae": VAE}}, config=config, **others) as engine:
        assert {model.name for model in engine.models()} == {"named", "picture"}
        assert {device.name: device.memory_limit_bytes for device in engine.devices()} == {"main": 3 * 2**30, "other": 2**31}
        assert {policy.name for policy in engine.policies()} == {"own", "lean"}
        assert engine.policy("own").in_force.settings["min-tile"] == 128
        assert engine.decode(LATENT, model="named").state.policy == "lean"
        assert engine.decode(LATENT, model="picture").state.policy == "own"
        assert engine.address.startswith("unix:/") and engine.connection.folder is not None
        written = (engine.connection.folder / "tilewright.toml").read_text()
        assert '"queue" = 3' in written and '"upload" = "64GiB"' in written and '"threads" = 1' in written
    with tilewright.Engine({}, device="cuda:99", config={"devices": {"main": {"device": "cpu"}}}) as engine:
        assert [device.name for device in engine.devices()] == ["main"]
    for key in ("listen", "token-file", "data"):
        with pytest.raises(tilewright.TilewrightError, match=f"^config: server.{key}: it is the engine's own"):
            tilewright.Engine(config={"server": {key: "127.0.0.1:0", "hosts": []}})


def test_wrong_arguments_are_refused_at_once() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"models": "folder"}, "models: expected Mapping, not str"),
        ({"models": {"a": None}}, "models: 'a': expected str or PathLike or Mapping, not NoneType"),
        ({"models": {"a": {"vae": None}}}, "'vae': expected"),
        ({"models": {"a": {"vae": [None]}}}, "'vae': expected"),
        ({"models": {5: "a"}}, "the name of a model: expected str, not int"),
        ({"device": None}, "device: expected str"),
        ({"policy": 5}, "policy: expected str or PathLike, not int"),
        ({"settings": [1]}, "settings: expected Mapping, not list"),
        ({"config": "file"}, "config: expected Mapping or None, not str"),
        ({"config": {"server": []}}, "config: server: expected a mapping, not list"),
        ({"config": {"server": {"limits": 5}}}, "config: server: limits: expected a mapping, not int"),
        ({"config": {"devices": {"main": "cpu"}}}, "config: devices: main: expected a mapping, not str"),
        ({"config": {"server": {"hosts": None}}}, '"server"."hosts": a configuration has no NoneType'),
    ]
    for wrong, words in refused:
        with pytest.raises(TypeError, match=words):
            tilewright.Engine(**wrong)
    for limit in ("much", "", 0, -1, 1.5):
        with pytest.raises(tilewright.TilewrightError, match="^memory_limit: expected a number of bytes, or a text as 8GiB"):
            tilewright.Engine(memory_limit=limit)  # type: ignore[arg-type]
    with pytest.raises(tilewright.TilewrightError, match="UTF-8"):
        tilewright.Engine({"a": "\ud800"})
