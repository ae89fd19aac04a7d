"""The program as a private child: it serves this process alone, and ends with it."""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn, Union

import httpx

from . import __version__, _wire, api
from ._connection import Connection
from ._json import expect, settings_of
from ._program import find_program
from ._toml import SIZE, bytes_of, dumps, merged
from .client import Client
from .errors import ConnectionFailed, ProgramEnded, ProgramError, RequestError, TilewrightError, last_error, last_line

#: What a model's table of the configuration may hold.
Value = Union[str, int, float, bool, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]

#: A model: the file, folder or name that all of its parts are found in, or the parts by the configuration's keys, as
#: `{"vae": "ae.safetensors"}`.
Model = Union[str, "os.PathLike[str]", Mapping[str, Value]]

#: Where private folders are made: on a disk, which the folders of the system for sockets and short files may not be.
BASE = "/var/tmp"

#: How a private folder is called.
PREFIX = "tilewright-engine-"

SHELL = "/bin/sh"

#: What becomes the program: it waits for a line, before the private folder is made, and so removes the folder if this
#: process is killed in the middle of that. From then on the program itself removes it.
LAUNCH = 'folder=$1; shift; read -r line || { command -p rm -rf -- "$folder"; exit 1; }; exec "$0" "$@" 2>"$folder/log"'

#: Seconds that the program may take to begin to answer; models are opened, not loaded, meanwhile.
START = 120.0

#: Seconds that it may take to end once nobody holds its input.
END = 10.0

#: The lines of its log that a message may show.
LINES = 20

#: The longest line that it is expected to say, in bytes.
LONGEST = 64 * 1024

#: The longest path of a socket, in bytes.
LONGEST_SOCKET = 107

#: Limits of [server], which are for many callers: here there is one.
LIMITS = {"requests-per-second": 100_000, "queue": 100_000, "upload": "64GiB", "deadline": "30d"}

#: Keys of [server] that make an engine private.
PRIVATE = ("listen", "token-file", "data")

#: How it says that a configuration is wrong without quoting it.
UNQUOTED = "the log says what is wrong"

#: What says that nobody listens at a socket any more.
ABSENT = (FileNotFoundError, ConnectionRefusedError)

#: The children that live, for the end of the process.
_alive: weakref.WeakSet[Child] = weakref.WeakSet()


class Engine(Client):
    """The program as a child of this process, on a socket that only its user can connect to.

    It starts with the first request, serves any number of threads, and ends with `close`, or with this process however
    that ends. If it crashes, the request under way raises `ProgramEnded`; the next one starts it again, and what it had
    accepted goes on.

    Args:
        models: the models that jobs may name. Without any, they are added by `add_model`.
        device: `auto`, `cpu` or `cuda[:N]`; ROCm answers to cuda, as in PyTorch.
        memory_limit: the most memory that a job may hold, in bytes or as `"8GiB"`. Model weights count for samples and
            text encoders, and don't for decodes and encodes.
        policy: the policy that decides, a shipped one's name or a .wasm file.
        settings: the policy's settings.
        program: the program's file, in place of the one that is found.
        config: further sections of the program's configuration, as `{"routes": […]}`. Its tables are merged with those of
            the other arguments, which are `devices.main`, `policies.own` and `models`; routes replace the one to `own`.

    Raises:
        TilewrightError: an argument has a value that the program does not know.
        TypeError: one has another type.
    """

    def __init__(
        self,
        models: Mapping[str, Model] | None = None,
        *,
        device: str = "auto",
        memory_limit: int | str | None = None,
        policy: str | os.PathLike[str] = "adaptive",
        settings: Mapping[str, Any] | None = None,
        program: str | os.PathLike[str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        expect("device", device, str)
        expect("config", config, Mapping, type(None))
        own: dict[str, Any] = {"device": device}
        if memory_limit is not None:
            own["memory-limit"] = _size("memory_limit", memory_limit)
        chosen: dict[str, Any] = {"source": _absolute(policy)}
        if settings:
            chosen["set"] = settings_of(settings)
        whole: dict[str, Any] = {
            "server": {"limits": dict(LIMITS)},
            "devices": {"main": own},
            "policies": {"own": chosen},
            "routes": [{"policy": "own"}],
            "models": {},
        }
        whole = merged(whole, config or {}, "config")
        for key in PRIVATE:
            if key in whole["server"]:
                raise TilewrightError(f"config: server.{key}: it is the engine's own, and keeps it private: leave it out")
        whole["models"].update(_tables(models or {}))
        # What TOML does not have is refused here.
        dumps(whole)
        self.connection: Child = Child(None if program is None else Path(program), whole)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an engine stays in its process: make another one there")

    def __enter__(self) -> Engine:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def start(self) -> None:
        """Starts the program, if it does not run.

        Raises:
            ProgramError: it is missing, of another version, or does not start; its last line says why.
        """
        self.connection.start()

    @property
    def pid(self) -> int | None:
        """The child's process id; None while it does not run."""
        return self.connection.pid

    def log(self) -> str:
        """The last lines of the program's log."""
        return self.connection.log()

    def add_model(self, name: str, model: Model) -> None:
        """Adds a model, or replaces one of the same name: the program takes it over while it runs.

        Raises:
            RequestError: the model can't be opened; those before stay.
        """
        self.connection.add_model(name, model)

    def close(self) -> None:
        """Ends the program, with the jobs that are at work, and removes what belonged to it."""
        self.connection.close()


class Child(Connection):
    """The program as a child, started when it is needed."""

    def __init__(self, program: Path | None, config: Mapping[str, Any]) -> None:
        super().__init__("unix:", secrets.token_urlsafe(32), True)
        self._program = program
        self._config = config
        self._models: dict[str, Any] = config["models"]
        self._held = Held()
        self._last_end = ""
        self._socket = ""
        self._closed = False
        self._reloads = threading.Lock()
        _alive.add(self)
        # An engine that nobody closed ends with its last user.
        weakref.finalize(self, self._held.release).atexit = False

    @property
    def folder(self) -> Path | None:
        """The private folder, while there is one."""
        return self._held.folder

    def start(self) -> None:
        """Starts the program, if it does not run.

        Raises:
            ProgramError: it is missing, of another version, or does not start; its last line says why.
        """
        self._refuse_forks()
        with self._lock:
            self._refuse_closed()
            if self._http is not None and self._listens():
                return
            self._end_child()
            program = self._program or find_program()
            child = self._spawn(program)
            self.address = f"unix:{self.folder}/{self._socket}"
            self._await_start(child, program)
            self._begin_session()
            self._check_version(program)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ProgramError("the engine is closed: make another one")

    def _refuse_forks(self) -> None:
        # Before the lock is asked for, which another thread may have held when this process was made.
        if self._process != os.getpid():
            raise ProgramError("the engine belongs to the process that made it: make another one in this process")

    def _spawn(self, program: str | Path) -> subprocess.Popen[bytes]:
        """Starts the program in the private folder."""
        if shutil.which(program) is None:
            why = errno.EACCES if os.path.exists(program) else errno.ENOENT
            raise ProgramError(f"{program}: {os.strerror(why)}")
        folder = self.folder if self.folder is not None and self.folder.is_dir() else None
        base = private_base()
        if folder is None:
            _sweep(base)
        place = folder or base / f"{PREFIX}{secrets.token_hex(8)}"
        # A session of an earlier program must not come to this one: whoever waits in it would never be woken when it is
        # closed.
        self._socket = f"socket-{secrets.token_hex(2)}"
        length = len(os.fsencode(place / self._socket))
        if length > LONGEST_SOCKET:
            raise ProgramError(
                f"{base}: a socket's path would have {length} bytes there, of {LONGEST_SOCKET} that are possible: name a "
                "shorter folder in TMPDIR"
            )
        serve = ["serve", "--config", place / "tilewright.toml", "--private", place]
        # The user's own configuration is for the user's commands.
        environment = {name: value for name, value in os.environ.items() if name != "TILEWRIGHT_CONFIG"}
        try:
            child = subprocess.Popen(
                [SHELL, "-c", LAUNCH, program, place, *serve],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise ProgramError(f"{SHELL}: {error.strerror}") from None
        self._held.child = child
        try:
            if folder is None:
                self._held.make_folder(place, self.token or "")
            self._write_config(place)
            assert child.stdin is not None
            # Whether it still lives is seen by its answer.
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(b"\n")
                child.stdin.flush()
        except (OSError, TilewrightError) as error:
            # A folder with jobs in it is kept for the next try.
            if folder is None:
                self._held.release()
            else:
                self._end_child()
            why = error.strerror if isinstance(error, OSError) else error
            raise ProgramError(f"{base}: {why}: name a folder that can be written in TMPDIR") from None
        return child

    def _await_start(self, child: subprocess.Popen[bytes], program: str | Path) -> None:
        """Waits for the line that it listens."""
        assert child.stdout is not None
        timer = threading.Timer(START, child.kill)
        timer.daemon = True
        began = time.monotonic()
        timer.start()
        try:
            line = said = b""
            # Another program may say anything, or nothing.
            while not line.startswith(b"listening on ") and (line := child.stdout.readline(LONGEST)):
                said = line
            code = None if line else child.wait()
        finally:
            timer.cancel()
        if code is None:
            return
        waited = time.monotonic() - began
        log = self._outside(self.log())
        why = last_error(log)
        last = last_line(log) or said.decode(errors="replace").strip()
        self._end_child()
        if code < 0 and waited < START:
            raise ProgramEnded(f"{program}: it ended {_manner(code)} before it listened")
        if code < 0:
            raise ProgramError(f"{program}: it did not listen within {START:.0f} s, and was ended")
        # Another version may not even know its arguments.
        refused = _misfit(program, _asked_version(program))
        last = last or "it ended before it listened, and said nothing"
        raise refused or ProgramError(why or f"{program}: {last}")

    def _check_version(self, program: str | Path) -> None:
        """Asks the program that runs: to start another one for its version takes as long again."""
        assert self._http is not None
        try:
            answer = self._ask(self._http, "GET", "/healthz")
            refused = _misfit(program, _wire.message(self.address, api.Alive, answer.content).version)
        except (RequestError, ConnectionFailed):
            refused = ProgramError(f"{program}: it does not say its version: install it in version {__version__}")
        if refused is not None:
            self._end_child()
            raise refused

    def _end_child(self) -> None:
        """Ends the program if it runs, and keeps its folder: the jobs in it go on when it is started again."""
        child = self._held.child
        if child is not None:
            self._last_end = self._ending(child)
            child.kill()
        self._held.end_child()
        # Nobody comes to the next program by this session.
        self.end_session()
        if self.folder is not None and self._socket:
            with contextlib.suppress(OSError):
                (self.folder / self._socket).unlink()

    def _write_config(self, folder: Path) -> None:
        private = {"listen": f"unix:{folder / self._socket}", "data": str(folder / "data"), "token-file": str(folder / "token")}
        config = merged(self._config, {"server": private}, "")
        with _wire.written(folder / "tilewright.toml", survives=False) as file:
            file.write(dumps(config).encode())

    def session(self) -> httpx.Client:
        self._refuse_forks()
        with self._lock:
            self.start()
            return super().session()

    def session_at_once(self) -> httpx.Client | None:
        self._refuse_forks()
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._http if self._http is not None and self._listens() else None
        finally:
            self._lock.release()

    def broken(self, error: Exception, session: httpx.Client) -> TilewrightError:
        with self._lock:
            closed, is_current, child = self._closed, session is self._http, self._held.child
        if closed:
            return ProgramEnded("the engine was closed meanwhile")
        if not is_current or child is None:
            # Another thread has started it again.
            return ProgramEnded(self._last_end)
        if not _says_end(error):
            # The connection breaks a moment before the system tells of the end.
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1.0)
            with self._lock:
                if child is self._held.child and self._listens():
                    return _wire.broken("the program", error)
        with self._lock:
            # While it ends it takes no requests: the next one starts it again.
            if child is self._held.child:
                self._end_child()
            return ProgramEnded(self._last_end)

    def _listens(self) -> bool:
        """True unless the program has ended, or is about to."""
        folder = self.folder
        return self.pid is not None and folder is not None and (folder / self._socket).exists()

    def _ending(self, child: subprocess.Popen[bytes]) -> str:
        """How a child ended, for those whose request it took along."""
        code = child.poll()
        if code is None:
            return "the program was ended in the middle of a request"
        why = last_error(self._outside(self.log()))
        return f"the program ended {_manner(code)} in the middle of a request{f': {why}' if why else ''}"

    def _outside(self, text: str) -> str:
        """What the program says without places in its configuration, which nobody has written. A file that is missing is
        named there as the caller did."""
        place = re.escape(f"{self.folder}/")
        return re.sub(rf"{place}(tilewright\.toml(:[0-9]+)*: )?", "", text)

    def log(self) -> str:
        """The last lines of the program's log."""
        if self.folder is None:
            return ""
        try:
            with (self.folder / "log").open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 64 * 1024))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-LINES:])

    @property
    def pid(self) -> int | None:
        """The child's process id; None while it does not run."""
        child = self._held.child
        return child.pid if child is not None and child.poll() is None else None

    def add_model(self, name: str, model: Model) -> None:
        """Adds a model, or replaces one of the same name: the program takes it over while it runs.

        Raises:
            RequestError: the model can't be opened; those before stay.
        """
        self._refuse_forks()
        added = _tables({name: model})
        # What TOML does not have is refused here.
        dumps(added)
        # One at a time, while other requests go on.
        with self._reloads:
            with self._lock:
                self._refuse_closed()
                before = self._models.get(name)
                self._models.update(added)
                session, child = self._http, self._held.child
                if session is None or child is None or not self._listens():
                    return
            try:
                self._reload(session, child)
            except TilewrightError:
                with self._lock:
                    self._models.pop(name)
                    if before is not None:
                        self._models[name] = before
                    self._write_again()
                    now = self._held.child
                    if now is not None and now is not child:
                        # It was started meanwhile, and has the model.
                        now.send_signal(signal.SIGHUP)
                raise

    def _write_again(self) -> None:
        if self.folder is not None:
            self._write_config(self.folder)

    def _reload(self, session: httpx.Client, child: subprocess.Popen[bytes]) -> None:
        """Has a program read its configuration again.

        Raises:
            RequestError: it refuses the configuration.
            ProgramEnded: it ended meanwhile.
        """
        seen = {(event.time, event.what, event.detail) for event in self._events(session)}
        with self._lock:
            if child is self._held.child:
                self._write_again()
                child.send_signal(signal.SIGHUP)
        until = time.monotonic() + START
        while time.monotonic() < until:
            for event in self._events(session):
                if (event.time, event.what, event.detail) in seen:
                    continue
                if event.what == "reloaded":
                    return
                if event.what == "reload-refused":
                    raise RequestError(self._refusal(event.detail), 422)
            time.sleep(0.02)
        raise _wire.broken("the program", TimeoutError("it does not read its configuration again"))

    def _refusal(self, detail: str) -> str:
        """Why a configuration is refused."""
        quoted = re.findall(r'error="((?:[^"\\]|\\.)*)"', last_error(self.log())) if UNQUOTED in detail else []
        return self._outside(re.sub(r"\\(.)", r"\1", quoted[-1]) if quoted else detail)

    def _events(self, session: httpx.Client) -> tuple[api.Event, ...]:
        """The events of the program that has this session, and of none that is started later."""
        answer = self._ask(session, "GET", "/v1/events")
        return _wire.message(self.address, api.Events, answer.content).events

    def close(self) -> None:
        """Ends the program, with the jobs that are at work, and removes what belonged to it."""
        if self._process != os.getpid():
            return
        with self._lock:
            self._closed = True
            self._held.release()
            self.end_session()

    def let_go(self) -> None:
        """In a fork of the process: closes its ends of what holds the program and its folder."""
        self._held.let_go()


class Held:
    """What an engine has of the system: a process, a folder, and the lock by which others see that the folder is in
    use. It knows nothing of the engine, and so can be released when that is gone."""

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.folder: Path | None = None
        self._lock: IO[bytes] | None = None
        self._process = os.getpid()

    def make_folder(self, folder: Path, token: str) -> None:
        """Makes the folder, with the token in it."""
        self._unlock()
        self.folder = folder
        while self._lock is None:
            # Another engine may have swept it before it was locked.
            with contextlib.suppress(FileExistsError):
                folder.mkdir(0o700)
            self._lock = _locked(folder, wait=True)
        descriptor = os.open(folder / "token", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(token)

    def end_child(self) -> None:
        """Ends the program, if it still runs."""
        child, self.child = self.child, None
        if child is None:
            return
        assert child.stdin is not None and child.stdout is not None
        # The end of its input tells it that nobody is left.
        with contextlib.suppress(OSError):
            child.stdin.close()
        try:
            child.wait(END)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()

    def release(self) -> None:
        """Ends the program, and removes the folder."""
        if self._process != os.getpid():
            return
        self.end_child()
        folder, self.folder = self.folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        self._unlock()

    def let_go(self) -> None:
        """In a fork of the process: closes its ends of the program's input and of the lock."""
        if self.child is not None and self.child.stdin is not None:
            with contextlib.suppress(OSError):
                self.child.stdin.close()
        self._unlock()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()


@atexit.register
def _close_all() -> None:
    for child in list(_alive):
        child.close()


def _let_go() -> None:
    """In a fork: the program ends with the process that started it, whoever else was made from it."""
    for child in list(_alive):
        child.let_go()


os.register_at_fork(after_in_child=_let_go)


def _manner(code: int) -> str:
    """How a process ended."""
    if code >= 0:
        return f"with status {code}"
    try:
        return f"by signal {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"


def _says_end(error: BaseException | None) -> bool:
    """True for an error that only a program which ends gives."""
    while error is not None:
        if isinstance(error, (_wire.EarlyEnd, RequestError, *ABSENT)):
            return True
        # What the caller handles meanwhile is no cause.
        error = error.__cause__
    return False


def _size(name: str, value: int | str) -> str:
    """A size as the configuration has it."""
    try:
        return str(bytes_of(value))
    except (ValueError, TypeError):
        raise TilewrightError(f"{name}: expected {SIZE}, not {value!r}") from None


def _absolute(value: str | os.PathLike[str]) -> str:
    """A policy's source: a path is made absolute, a name stays."""
    expect("policy", value, str, os.PathLike)
    text = os.fspath(value)
    return os.path.abspath(text) if text.endswith(".wasm") else text


def _tables(models: Mapping[str, Model]) -> dict[str, dict[str, Any]]:
    """Models' tables of the configuration."""
    expect("models", models, Mapping)
    for name, model in models.items():
        expect("the name of a model", name, str)
        expect(f"models: {name!r}", model, str, os.PathLike, Mapping)
    return {name: _parts(model) for name, model in models.items()}


def _parts(model: Model) -> dict[str, Any]:
    """A model's table of the configuration."""
    if isinstance(model, (str, os.PathLike)):
        return {"model": _path(model)}
    return {key: _value(key, value) for key, value in model.items()}


def _value(key: str, value: Value) -> Any:
    expect(repr(key), value, bool, int, float, str, os.PathLike, Sequence)
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (str, os.PathLike)):
        return _path(value)
    for one in value:
        expect(repr(key), one, str, os.PathLike)
    return [_path(one) for one in value]


def _path(value: str | os.PathLike[str]) -> str:
    """A path relative to this process; what is none, such as a name or a family, stays."""
    text = os.fspath(value)
    return os.path.abspath(text) if os.path.exists(text) else text


def private_base() -> Path:
    """The folder that private folders are made in. Uploads and results may have gigabytes, and a socket's path is short.

    Raises:
        ProgramError: there is none that can be written.
    """
    if os.environ.get("TMPDIR"):
        return Path(os.path.abspath(os.environ["TMPDIR"]))
    if os.access(BASE, os.W_OK):
        return Path(BASE)
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        raise ProgramError(f"neither {BASE} nor /tmp can be written: name a folder for temporary files in TMPDIR") from None


def _locked(folder: Path, *, wait: bool) -> IO[bytes] | None:
    """The lock of a private folder: None if the folder is gone, or, without waiting, in use."""
    try:
        lock = (folder / "owner").open("ab")
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever held it may have removed it.
        if os.path.samestat(os.fstat(lock.fileno()), os.stat(folder / "owner")):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        lock.close()
        raise
    lock.close()
    return None


def _sweep(base: Path) -> None:
    """Removes what engines left whose process and program were both killed: nobody holds their lock."""
    for folder in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid != os.geteuid() or any(map(_answers, folder.glob("socket-*"))):
                continue
            lock = _locked(folder, wait=False)
            if lock is not None:
                with lock:
                    shutil.rmtree(folder, ignore_errors=True)


def _answers(path: Path) -> bool:
    import socket

    with socket.socket(socket.AF_UNIX) as one:
        try:
            one.connect(os.fspath(path))
        except OSError:
            return False
    return True


def _misfit(program: str | Path, version: str | None) -> ProgramError | None:
    """The error of a program whose version is not this package's in all but its last part."""
    if version is None or version.split(".")[:2] == __version__.split(".")[:2]:
        return None
    # pip could put another PyTorch in place of that of a Python which the program is not in.
    is_beside = Path(program).resolve().is_relative_to(Path(__file__).resolve().parent.parent)
    way = f"pip install 'tilewright[engine]=={__version__}'" if is_beside else "tilewright engine install"
    return ProgramError(f"{program} is version {version}, and this package {__version__}: install the same of both by {way}")


def _asked_version(program: str | Path) -> str | None:
    """The version that a program says when it is started for nothing else."""
    try:
        asked = subprocess.run(
            [program, "--version"], capture_output=True, encoding="utf-8", errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = asked.stdout.split()
    return words[1] if asked.returncode == 0 and len(words) == 2 else None
