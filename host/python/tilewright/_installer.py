"""pip, or uv where there is one, at work on an environment that isn't the running one."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from .errors import TilewrightError

#: The first pip that installs into another environment.
OTHER_ENVIRONMENT = (22, 3)

#: Seconds between two looks at how much has come.
LOOK = 0.5

#: Seconds after which a line says how much has come, even if it is little.
SILENCE = 60

# What a user may have set for work of their own, and what would make another environment of this one. Proxies, indexes,
# certificates, caches and timeouts stay.
_DIVERTING = (
    "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PIP_BREAK_SYSTEM_PACKAGES", "PIP_CONSTRAINT",
    "PIP_DRY_RUN", "PIP_EDITABLE", "PIP_FORCE_REINSTALL", "PIP_IGNORE_INSTALLED", "PIP_LOG", "PIP_NO_BINARY",
    "PIP_NO_DEPS", "PIP_PREFIX", "PIP_PYTHON", "PIP_QUIET", "PIP_REPORT", "PIP_REQUIRE_HASHES",
    "PIP_REQUIRE_VIRTUALENV", "PIP_REQUIREMENT", "PIP_ROOT", "PIP_TARGET", "PIP_UPGRADE", "PIP_USER", "PIP_VERBOSE",
    "UV_CONSTRAINT", "UV_NO_BINARY", "UV_OVERRIDE", "UV_PREFIX", "UV_PYTHON", "UV_REQUIRE_HASHES", "UV_SYSTEM_PYTHON",
    "UV_TARGET", "UV_TORCH_BACKEND",
)  # fmt: skip

# uv reads none of these: where one is set, pip is used.
_CONFIGURING = (
    "PIP_CERT", "PIP_CLIENT_CERT", "PIP_CONFIG_FILE", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_INDEX_URL",
    "PIP_NO_INDEX", "PIP_PROXY", "PIP_TRUSTED_HOST",
)  # fmt: skip


# What the system calls a disk that is full, and one that can't be used.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENAMETOOLONG)


class InstallerFailed(TilewrightError):
    """The installer ended with an error; the text is its own reason."""


class LocalFault(InstallerFailed):
    """The reason is on this machine; the text says what to do."""


class OutputFailed(TilewrightError):
    """Standard output can't be written."""


@contextlib.contextmanager
def writing() -> Generator[None, None, None]:
    """Something is written to standard output.

    Raises:
        BrokenPipeError: nobody reads it.
        OutputFailed: it can't be written.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(f"standard output: {error.strerror}") from None


class Progress:
    """What an install tells: lines, and a meter: on a terminal in place, elsewhere a line for each tenth."""

    def __init__(self, out: IO[str], verbose: bool = False) -> None:
        self._out = out
        self.verbose = verbose
        self._in_place = out.isatty()
        self._width = 0
        self._said = (0, time.monotonic())

    def _print(self, text: str, end: str) -> None:
        with writing():
            print(f"\r{text.ljust(self._width)}" if self._width else text, end=end, file=self._out, flush=True)

    def line(self, text: str) -> None:
        """A line that stays."""
        self._print(text, "\n")
        self._width = 0

    def begin(self) -> None:
        """Begins the meter anew."""
        self._said = (0, time.monotonic())

    def meter(self, done: int, expected: int, how: str) -> None:
        """How many bytes there are of about how many, and how; the next line takes its place on a terminal."""
        text = f"  {done // 1_000_000} of about {expected // 1_000_000} MB {how}"
        if self._in_place:
            self._print(text, "")
            self._width = len(text)
            return
        tenths, now = done * 10 // expected, time.monotonic()
        if tenths > self._said[0] or now - self._said[1] > SILENCE:
            self._said = (tenths, now)
            self.line(text)


@dataclass
class Arrivals:
    """What an installer has fetched, by the size of its temporary folders: not every one of them says it.

    Attributes:
        folders: where it makes them.
        pattern: what they are called.
        expected: about how many bytes will come.
        how: what they are when they have come, as "fetched".
    """

    folders: tuple[Path, ...]
    pattern: str
    expected: int
    how: str
    _before: set[Path] = field(init=False)
    _sizes: dict[Path, int] = field(default_factory=dict[Path, int], init=False)

    def __post_init__(self) -> None:
        self._before = set(self._there())

    def _there(self) -> Iterator[Path]:
        for folder in self.folders:
            yield from folder.glob(self.pattern)

    def bytes(self) -> int:
        """The bytes that have come; what was moved on since the last look counts, too."""
        for path in self._there():
            if path not in self._before:
                self._sizes[path] = max(self._sizes.get(path, 0), _size(path))
        return sum(self._sizes.values())


def _size(path: Path) -> int:
    """The bytes of the files below a folder, or of a file."""
    total = 0
    paths = [os.fspath(path)]
    while paths:
        try:
            with os.scandir(paths.pop()) as entries:
                for entry in entries:
                    # Whatever is there now may be elsewhere at once.
                    with contextlib.suppress(FileNotFoundError):
                        if entry.is_dir(follow_symlinks=False):
                            paths.append(entry.path)
                        else:
                            total += entry.stat(follow_symlinks=False).st_size
        except NotADirectoryError:
            with contextlib.suppress(OSError):
                total += path.lstat().st_size
        except OSError:
            pass
    return total


def _pip_files(environment: Mapping[str, str]) -> list[Path]:
    """pip's files of settings (pip.pypa.io/en/stable/topics/configuration)."""
    home = Path(environment.get("HOME") or os.path.expanduser("~"))
    own = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    shared = (environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    paths = [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", own / "pip" / "pip.conf", Path(sys.prefix, "pip.conf")]
    return paths + [Path(folder, "pip", "pip.conf") for folder in shared if folder]


def pip_is_configured(environment: Mapping[str, str]) -> bool:
    """True where pip has settings of its own about where packages come from."""
    return any(environment.get(name) for name in _CONFIGURING) or any(map(Path.is_file, _pip_files(environment)))


def reason(lines: Sequence[str]) -> str:
    """The line of an installer's output that says best why it failed."""
    text = [line.strip() for line in lines if line.strip()]
    for line in text:
        # pip's error after it says no more than that there is no such package.
        broken = re.search(r"connection broken by '(.*)': (\S+)", line)
        if broken is not None:
            cause = broken[1].rsplit(": ", 1)[-1].rstrip(")>'\"")
            return f"the index can't be reached ({cause})"
    for place, line in enumerate(text):
        if line.startswith("ERROR: Exception:"):
            break
        if line.startswith("ERROR: "):
            return line[7:]
        if line.startswith("error: "):
            causes = [found[1] for below in text[place:] if (found := re.match(r"(?:Caused by|cause): (.+)", below))]
            return ": ".join([line[7:], *causes[-1:]])
        if line.startswith("╰─▶"):
            wrapped = [below for below in text[place:] if not below.startswith("hint:")]
            return " ".join([wrapped[0][3:].strip(), *wrapped[1:]])
    return text[-1] if text else "it said nothing"


def _local_fault(lines: Sequence[str]) -> str:
    """What is wrong on this machine, by an installer's output; empty if that is not what it failed by."""
    for line in lines:
        damaged = re.search(r"Wheel '.*' located at (\S+) is invalid|Failed to read metadata from: `(.+\.whl)`", line)
        # One that was fetched is gone with the installer's temporary files.
        if damaged is not None and os.path.isfile(damaged[1] or damaged[2]):
            return f"{damaged[1] or damaged[2]}: is no wheel, or damaged: fetch or build it again"
        broken = re.search(r"Because (\S+) has an invalid package format", line)
        if broken is not None:
            return f"{broken[1]}: its wheel is damaged: fetch or build it again"
        # pip and uv write the system's errors in their own ways. That of a connection may have any number.
        numbers = [] if "connect" in line.lower() else re.findall(r"(?:\[Errno |\(os error )(\d+)", line)
        for number in map(int, numbers):
            said = re.sub(r"^(?:ERROR|error|Caused by|cause): ", "", line.strip())
            if number in FULL:
                return f"no room is left on the disk: {said}: make room, or name another folder by XDG_DATA_HOME"
            if number in _CLOSED:
                return f"the disk can't be written: {said}: make it writable, or name another folder by XDG_DATA_HOME"
    return ""


def failure(lines: Sequence[str]) -> InstallerFailed:
    """Why an installer failed, by its output."""
    fault = _local_fault(lines)
    return LocalFault(fault) if fault else InstallerFailed(reason(lines))


def _tell(line: str, progress: Progress) -> None:
    """Turns a line of the installer's into progress."""
    if progress.verbose:
        progress.line(line)
        return
    fetched = re.match(r"(Downloading|Using cached) (.+)", line)
    if fetched is not None and ".metadata" not in line:
        name = fetched[2].rsplit("/", 1)[-1].replace("%2B", "+")
        progress.line(f"{'fetching' if fetched[1] == 'Downloading' else 'in the cache:'} {name}")
    elif line.startswith("Installing collected packages: "):
        count = line.count(",") + 1
        progress.line(f"unpacking {count} package{'' if count == 1 else 's'}")
    elif line.startswith(("Prepared ", "Installed ")):
        progress.line(line)


def _lines(out: IO[bytes]) -> Iterator[str | None]:
    """The lines that a child says, and none whenever it has been silent for a moment."""
    rest = b""
    while True:
        if not select.select([out], [], [], LOOK)[0]:
            yield None
            continue
        some = os.read(out.fileno(), 1 << 16)
        *whole, rest = (rest + some).split(b"\n")
        yield from (line.decode(errors="replace").rstrip() for line in whole)
        if not some:
            break
    if rest:
        yield rest.decode(errors="replace").rstrip()


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends a child and those that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


@dataclass(frozen=True)
class Workplace:
    """What every child is started with.

    Attributes:
        scratch: for temporary files, which go with it however the child ends.
        lock: the lock on the environments. It is each child's standard input, so that a child that outlives a killed
            install keeps the lock, and nobody takes its files away.
    """

    scratch: Path
    lock: IO[bytes]

    def run(
        self, command: Sequence[str], progress: Progress | None = None, arrivals: Arrivals | None = None
    ) -> list[str]:
        """Runs a command to its end and returns its lines.

        Raises:
            InstallerFailed: it failed.
            LocalFault: the reason is on this machine.
        """
        environment = {name: value for name, value in os.environ.items() if name not in _DIVERTING}
        environment.update(TMPDIR=os.fspath(self.scratch), PYTHONUNBUFFERED="1", PYTHONIOENCODING="utf-8")
        lines: list[str] = []
        try:
            child = subprocess.Popen(
                command, stdin=self.lock, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.scratch,
                env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise InstallerFailed(f"{command[0]}: {error.strerror}") from None
        try:
            assert child.stdout is not None
            with child.stdout:
                for line in _lines(child.stdout):
                    if line is not None:
                        lines.append(line)
                    if progress is None:
                        continue
                    if line is not None:
                        _tell(line.strip(), progress)
                    elif arrivals is not None and (came := arrivals.bytes()):
                        progress.meter(came, arrivals.expected, arrivals.how)
            status = child.wait()
        except BaseException:
            _end(child)
            raise
        if status < 0:
            raise InstallerFailed(f"{command[0]} was ended by signal {-status}")
        if status != 0:
            raise failure(lines)
        return lines


@dataclass(frozen=True)
class Installer:
    """A command that installs into one environment.

    Attributes:
        command: its words, as far as every install has them.
        workplace: what it is started with.
        folders: where it makes temporary folders for what it fetches.
        pattern: what these are called.
        unpacks: whether it unpacks while it fetches.
    """

    command: tuple[str, ...]
    workplace: Workplace
    folders: tuple[Path, ...]
    pattern: str
    unpacks: bool

    def install(
        self, requirements: Sequence[str], find_links: Sequence[str], index: str | None, dependencies: bool,
        megabytes: tuple[int, int], progress: Progress,
    ) -> None:  # fmt: skip
        """Installs packages.

        Args:
            requirements: names with versions, or files of wheels.
            find_links: more folders or pages with wheels.
            index: the index, if it isn't the installer's own.
            dependencies: whether to install what they need, too.
            megabytes: about how much is to be fetched, and how much that is unpacked.

        Raises:
            InstallerFailed: they can't be installed; the environment may have parts of them.
            LocalFault: the reason is on this machine.
        """
        options = [] if dependencies else ["--no-deps"]
        options += [f"--find-links={place}" for place in find_links]
        options += [] if index is None else [f"--index-url={index}"]
        how = "unpacked" if self.unpacks else "fetched"
        arrivals = Arrivals(self.folders, self.pattern, megabytes[self.unpacks] * 1_000_000, how)
        progress.begin()
        self.workplace.run([*self.command, *options, "--", *requirements], progress, arrivals)


def _pip_version(command: Sequence[str], workplace: Workplace) -> tuple[int, ...]:
    """The version of a pip; empty where there is none."""
    try:
        lines = workplace.run([*command, "--version"])
    except InstallerFailed:
        return ()
    found = re.match(r"pip (\d+)\.(\d+)", lines[0] if lines else "")
    return () if found is None else (int(found[1]), int(found[2]))


def installer(python: Path, workplace: Workplace) -> Installer:
    """The quickest installer that there is for the environment of `python`.

    Raises:
        InstallerFailed: there is none.
    """
    uv = shutil.which("uv")
    if uv is not None and not pip_is_configured(os.environ):
        flags = ("--only-binary=:all:", "--no-progress", "--color=never")
        # A cache of its own, where the user wants none, lies among the temporary files.
        folders = (workplace.scratch, *(Path(line) for line in workplace.run([uv, "cache", "dir"])[-1:]))
        return Installer((uv, "pip", "install", f"--python={python}", *flags), workplace, folders, ".tmp*", True)
    command: tuple[str, ...] = (sys.executable, "-m", "pip")
    if _pip_version(command, workplace) >= OTHER_ENVIRONMENT:
        command = (*command, f"--python={python}")
    else:
        command = (os.fspath(python), "-m", "pip")
        try:
            workplace.run([os.fspath(python), "-m", "ensurepip"])
        except InstallerFailed as error:
            raise InstallerFailed(
                f"{sys.executable} has neither pip 22.3 nor ensurepip ({error}): install python3-venv, pip or uv"
            ) from None
    options = (
        "--only-binary=:all:", "--no-compile", "--no-input", "--no-color", "--no-user", "--no-warn-script-location",
        "--disable-pip-version-check", "--progress-bar=off",
    )  # fmt: skip
    return Installer((*command, "install", *options), workplace, (workplace.scratch,), "pip-unpack-*", False)
