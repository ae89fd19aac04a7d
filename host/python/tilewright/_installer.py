"""pip, or uv where there is one, at work on an environment that isn't the running one."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .errors import TilewrightError

#: The first pip that installs into another environment, and the first that tells its progress in lines.
OTHER_ENVIRONMENT, RAW_PROGRESS = (22, 3), (24, 1)

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


class InstallerFailed(TilewrightError):
    """The installer ended with an error; the text is its own reason."""


class Progress:
    """What an install tells: lines, and one that changes: on a terminal in place, elsewhere now and then."""

    def __init__(self, out: IO[str], verbose: bool = False) -> None:
        self._out = out
        self.verbose = verbose
        self._in_place = out.isatty()
        self._width = 0
        self._said = time.monotonic()

    def line(self, text: str) -> None:
        """A line that stays."""
        print(f"\r{text.ljust(self._width)}" if self._width else text, file=self._out, flush=True)
        self._width = 0

    def meter(self, text: str) -> None:
        """A line that the next one takes the place of."""
        if self._in_place:
            print(f"\r{text.ljust(self._width)}", end="", file=self._out, flush=True)
            self._width = len(text)
        elif time.monotonic() - self._said > 10:
            self._said = time.monotonic()
            print(text, file=self._out, flush=True)


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


def _tell(line: str, progress: Progress) -> None:
    """Turns a line of the installer's into progress."""
    if progress.verbose:
        progress.line(line)
        return
    raw = re.fullmatch(r"Progress (\d+) of (\d+)", line)
    if raw is not None:
        if int(raw[2]) > 0:
            progress.meter(f"  {int(raw[1]) // 1_000_000} of {int(raw[2]) // 1_000_000} MB")
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


def _end(child: subprocess.Popen[str]) -> None:
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

    def run(self, command: Sequence[str], progress: Progress | None = None) -> list[str]:
        """Runs a command to its end and returns its lines.

        Raises:
            InstallerFailed: it failed.
        """
        environment = {name: value for name, value in os.environ.items() if name not in _DIVERTING}
        environment.update(TMPDIR=os.fspath(self.scratch), PYTHONUNBUFFERED="1", PYTHONIOENCODING="utf-8")
        lines: list[str] = []
        try:
            child = subprocess.Popen(
                command, stdin=self.lock, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.scratch,
                env=environment, encoding="utf-8", errors="replace", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise InstallerFailed(f"{command[0]}: {error.strerror}") from None
        try:
            assert child.stdout is not None
            with child.stdout:
                for line in child.stdout:
                    lines.append(line.rstrip())
                    if progress is not None:
                        _tell(line.strip(), progress)
            status = child.wait()
        except BaseException:
            _end(child)
            raise
        if status < 0:
            raise InstallerFailed(f"{command[0]} was ended by signal {-status}")
        if status != 0:
            raise InstallerFailed(reason(lines))
        return lines


@dataclass(frozen=True)
class Installer:
    """A command that installs into one environment."""

    command: tuple[str, ...]
    workplace: Workplace

    def install(
        self, requirements: Sequence[str], find_links: Sequence[str], index: str | None, dependencies: bool,
        progress: Progress,
    ) -> None:  # fmt: skip
        """Installs packages.

        Args:
            requirements: names with versions, or files of wheels.
            find_links: more folders or pages with wheels.
            index: the index, if it isn't the installer's own.
            dependencies: whether to install what they need, too.

        Raises:
            InstallerFailed: they can't be installed; the environment may have parts of them.
        """
        options = [] if dependencies else ["--no-deps"]
        options += [f"--find-links={place}" for place in find_links]
        options += [] if index is None else [f"--index-url={index}"]
        self.workplace.run([*self.command, *options, "--", *requirements], progress)


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
        return Installer((uv, "pip", "install", f"--python={python}", *flags), workplace)
    command: tuple[str, ...] = (sys.executable, "-m", "pip")
    version = _pip_version(command, workplace)
    if version >= OTHER_ENVIRONMENT:
        command = (*command, f"--python={python}")
    else:
        command = (os.fspath(python), "-m", "pip")
        try:
            workplace.run([os.fspath(python), "-m", "ensurepip"])
        except InstallerFailed as error:
            raise InstallerFailed(
                f"{sys.executable} has neither pip 22.3 nor ensurepip ({error}): install python3-venv, pip or uv"
            ) from None
        version = _pip_version(command, workplace)
    progress = "raw" if version >= RAW_PROGRESS else "off"
    options = (
        "--only-binary=:all:", "--no-compile", "--no-input", "--no-color", "--no-user", "--no-warn-script-location",
        "--disable-pip-version-check", f"--progress-bar={progress}",
    )  # fmt: skip
    return Installer((*command, "install", *options), workplace)
