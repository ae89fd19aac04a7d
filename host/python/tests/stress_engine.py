"""Kills of processes that have an engine, and of their programs, at random moments: `python tests/stress_engine.py
--kills 50`.

After each kill of a process nothing of its engine may be left: no program, no socket, no file. Kills of the program may
cost no job that was acknowledged, and no call may hang.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import numpy

from conftest import MODELS, VAE  # isort: skip: it tells Python where the package is

import tilewright
from tilewright._tensors import to_safetensors

#: The variable that the processes of an experiment have in common, so that they are found wherever they end up.
MARK = "TILEWRIGHT_STRESS"

#: Seconds within which everything has to be gone.
GONE = 10.0

#: Seconds that a call may take: a start of the program and the jobs before its own.
PATIENCE = 120.0

THREADS = 4

#: A latent of 64 × 64 pixels.
LATENT = to_safetensors("latent", numpy.zeros((1, 16, 8, 8), numpy.float32))

#: What is killed: it says how far it is.
PARENT = """
import sys, threading
print("begun", flush=True)
import tilewright
engine = tilewright.Engine({"picture": {"vae": sys.argv[1]}}, device="cpu")
print("starting", flush=True)
engine.start()
print("started", flush=True)
latent = open(sys.argv[2], "rb").read()

def work():
    while True:
        job = engine.decode(latent, model="picture")
        print("accepted\\n", end="", flush=True)
        job.result()
        print("done\\n", end="", flush=True)

for _ in range(4):
    threading.Thread(target=work).start()
"""


@dataclass
class Place:
    """Where an experiment's files are, and how its processes are told from others."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of its processes."""
        folder = str(self.folder)
        return {"XDG_RUNTIME_DIR": folder, "TMPDIR": folder, MARK: self.mark}

    @contextlib.contextmanager
    def in_force(self) -> Generator[None]:
        """Engines of this process are here, and their programs are marked."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        tempfile.tempdir = None
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
            tempfile.tempdir = None

    def left(self) -> list[str]:
        """What there is of it: files, sockets and processes, this one aside."""
        # Folders that go meanwhile are no error here.
        walked = os.walk(self.folder)
        found = [os.path.join(folder, name) for folder, folders, files in walked for name in (*folders, *files)]
        sockets = Path("/proc/net/unix").read_text().splitlines()
        found.extend(f"socket {line.split()[-1]}" for line in sockets if str(self.folder) in line)
        wanted = f"{MARK}={self.mark}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            if int(process.name) == os.getpid():
                continue
            # A process of another user, or one that has just ended, tells nothing.
            with contextlib.suppress(OSError):
                if wanted in (process / "environ").read_bytes().split(b"\0"):
                    command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found.append(f"process {process.name} {command}")
        return found

    def await_nothing(self) -> float:
        """Waits until nothing is left, and says how many seconds that took."""
        begin = time.monotonic()
        while left := self.left():
            waited = time.monotonic() - begin
            assert waited < GONE, f"left after {waited:.1f} s: {left}"
            time.sleep(0.01)
        return time.monotonic() - begin


@contextlib.contextmanager
def place() -> Generator[Place]:
    """A place that is removed at the end. Its path is short, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="tw-") as folder:
        yield Place(Path(folder))


def started(code: str, inside: Place, *arguments: str) -> subprocess.Popen[str]:
    """A process that runs some lines of Python at a place."""
    paths = [str(Path(tilewright.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, **inside.environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)


#: The words after each of which processes are killed in turn; the empty one is their very start.
PHASES = ("starting", "accepted", "", "done", "begun", "started")


def kill_parents(kills: int, seed: int, pause: float) -> str:
    """Kills processes with jobs at work, each at a random moment within some seconds of one of its words.

    Returns:
        The figures.
    """
    moments = random.Random(seed)
    phases: Counter[str] = Counter()
    longest = 0.0
    wrong: list[str] = []
    with place() as outside:
        latent = outside.folder / "latent.safetensors"
        latent.write_bytes(LATENT)
        for number in range(kills):
            with place() as inside:
                phase = PHASES[number % len(PHASES)]
                moment = moments.random() * pause
                with started(PARENT, inside, str(VAE), str(latent)) as parent:
                    assert parent.stdout is not None
                    said = [""]
                    while said[-1] != phase:
                        line = parent.stdout.readline()
                        assert line, f"the process ended before it said {phase}"
                        said.extend(line.split())
                    time.sleep(moment)
                    assert parent.poll() is None, "the process ended before it was killed"
                    parent.kill()
                    parent.wait()
                    said += parent.stdout.read().split()
                    try:
                        longest = max(longest, inside.await_nothing())
                    except AssertionError as error:
                        wrong.append(f"{moment:.2f} s after {phase}, {said}: {error}")
                phases[said[-1] or "not begun"] += 1
    assert not wrong, f"{len(wrong)} of {kills} kills: {wrong}"
    met = ", ".join(f"{name} {count}" for name, count in sorted(phases.items()))
    return f"parent: {kills} kills (last word: {met}); all was gone after {longest:.2f} s at most"


class Work:
    """Jobs of some threads on an engine whose program is killed meanwhile."""

    def __init__(self, engine: tilewright.Engine) -> None:
        self.engine = engine
        self.picture = self.decode().array()
        self.stop = threading.Event()
        self.accepted: dict[str, str] = {}
        self.errors: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.longest = 0.0

    def decode(self) -> tilewright.Job:
        """Submits a job."""
        return self.engine.decode(LATENT, model="picture", format="safetensors")

    def run(self) -> None:
        """Submits a job after the other, and waits for each; what was interrupted is asked for again at the end."""
        while not self.stop.is_set():
            begin = time.monotonic()
            try:
                job = self.decode()
                self.accepted[job.id] = "accepted"
                self._take(job)
            except tilewright.TilewrightError as error:
                self._note(error)
            except BaseException as error:
                self.wrong.append(f"{type(error).__name__}: {error}")
            self.longest = max(self.longest, time.monotonic() - begin)

    def _take(self, job: tilewright.Job) -> None:
        try:
            is_picture = numpy.array_equal(job.array(), self.picture)
        except tilewright.JobFailed as error:
            self.accepted[job.id] = error.state
        else:
            self.accepted[job.id] = "done" if is_picture else "another picture"

    def _note(self, error: tilewright.TilewrightError) -> None:
        text = str(error)
        self.errors[type(error).__name__] += 1
        if not text or "\n" in text or not isinstance(error, tilewright.ProgramEnded):
            self.wrong.append(f"{type(error).__name__}: {text}")

    def finish(self) -> None:
        """Asks for the jobs that were accepted and whose end nobody has seen."""
        for id, state in list(self.accepted.items()):
            if state == "accepted":
                self._take(self.engine.job(id).wait())


def kill_children(kills: int, seed: int, pause: float) -> str:
    """Kills the program of an engine at random moments, its starts included, while threads submit jobs.

    Returns:
        The figures.
    """
    moments = random.Random(seed)
    with place() as inside, inside.in_force():
        # A policy that learns takes other plans while the machine is busy, whose results differ by rounding.
        with tilewright.Engine(MODELS, device="cpu", policy="fixed") as engine:
            work = Work(engine)
            threads = [threading.Thread(target=work.run, daemon=True) for _ in range(THREADS)]
            for thread in threads:
                thread.start()
            pids: set[int] = set()
            while len(pids) < kills:
                time.sleep(moments.random() * pause)
                pid, until = engine.pid, time.monotonic() + PATIENCE
                while pid is None or pid in pids:
                    assert time.monotonic() < until, "no call starts the program again"
                    time.sleep(0.001)
                    pid = engine.pid
                os.kill(pid, signal.SIGKILL)
                pids.add(pid)
            work.stop.set()
            for thread in threads:
                thread.join(PATIENCE)
                assert not thread.is_alive(), "a call hangs"
            interrupted = sum(state == "accepted" for state in work.accepted.values())
            finishing = threading.Thread(target=work.finish, daemon=True)
            finishing.start()
            finishing.join(PATIENCE)
            assert not finishing.is_alive(), "a job does not end"
        gone = inside.await_nothing()
    assert not work.wrong, work.wrong
    states = Counter(work.accepted.values())
    assert set(states) == {"done"}, states
    return (
        f"child: {kills} kills; {len(work.accepted)} jobs accepted, {states['done']} done, of which {interrupted} were asked "
        f"for again at the end; {work.errors.total()} calls raised "
        f"({', '.join(f'{name} {count}' for name, count in sorted(work.errors.items()))}); the longest call took "
        f"{work.longest:.2f} s; all was gone after {gone:.2f} s"
    )


def main() -> None:
    """Both, with their figures."""
    parser = argparse.ArgumentParser(description="Kills processes with engines, and programs of engines.")
    parser.add_argument("--kills", type=int, default=50, help="of each kind [50]")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of the moments [a new one]")
    parser.add_argument("--after", type=float, default=0.5, help="most seconds from a process's word to its kill [0.5]")
    parser.add_argument("--pause", type=float, default=1.5, help="most seconds between kills of the program [1.5]")
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    failed = False
    for experiment, seconds in ((kill_parents, asked.after), (kill_children, asked.pause)):
        try:
            print(experiment(asked.kills, asked.seed, seconds), flush=True)
        except AssertionError as error:
            failed = True
            print(f"{experiment.__name__}: {error}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
