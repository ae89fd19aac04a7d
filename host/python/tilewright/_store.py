"""The folder of private environments, changed so that each is either complete or not there.

`current` is a link to the one that is in use. A lock lets only one install or removal work at a time: what has a
temporary name while the lock is held is a leftover.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from . import __version__ as VERSION
from ._installer import FULL, Progress
from ._program import NAME as PROGRAM
from ._program import fault_of
from .errors import TilewrightError

#: The package of the program.
ENGINE = "tilewright-engine"

#: What everything unfinished is called at first.
UNFINISHED = ".tilewright-"

_NAME = re.compile(r"(?P<version>[0-9][^-]*)-torch(?P<torch>[0-9.]+)-(?P<flavour>[a-z]+[0-9.]*)")


class FolderError(TilewrightError):
    """The folder of environments can't be used as it is."""


@dataclass(frozen=True)
class Environment:
    """An environment that was complete once.

    Attributes:
        path: its folder.
        version: of Tilewright.
        torch: version of its PyTorch, as 2.11.
        flavour: PyTorch's build, as cpu.
    """

    path: Path
    version: str
    torch: str
    flavour: str

    @property
    def name(self) -> str:
        return self.path.name

    def size(self) -> int:
        """Its bytes on the disk."""
        total = 0
        seen: set[tuple[int, int]] = set()
        for folder, folders, files in os.walk(self.path):
            for name in folders + files:
                try:
                    state = os.lstat(os.path.join(folder, name))
                except OSError:
                    continue
                # uv links files to those of its cache.
                if (state.st_dev, state.st_ino) not in seen:
                    seen.add((state.st_dev, state.st_ino))
                    total += state.st_blocks * 512
        return total


def program(path: Path) -> Path:
    """The program of an environment at `path`.

    Raises:
        TilewrightError: there is none.
    """
    for found in sorted(path.glob(f"lib/python3*/site-packages/tilewright_engine/bin/{PROGRAM}")):
        return found
    raise TilewrightError(f"{path}: {ENGINE} {VERSION} has no program in it: is the wheel of this version?")


def fault(path: Path) -> str:
    """What an environment at `path` lacks by now; empty if nothing."""
    sites = sorted(path.glob("lib/python3*/site-packages"))
    faults = [fault_of(os.fspath(site)) for site in sites] or ["its packages are gone"]
    return faults[0] if all(faults) else ""


@dataclass(frozen=True)
class Store:
    """The folder of environments."""

    folder: Path

    @property
    def link(self) -> Path:
        """The link to the environment that is in use."""
        return self.folder / "current"

    def environments(self) -> list[Environment]:
        """Those that have got their names, by name.

        Raises:
            FolderError: the folder can't be read.
        """
        try:
            paths = sorted(path for path in self.folder.iterdir() if path.is_dir() and not path.is_symlink())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise FolderError(f"{self.folder}: {error.strerror}") from None
        found = [(path, _NAME.fullmatch(path.name)) for path in paths]
        return [Environment(path, match["version"], match["torch"], match["flavour"]) for path, match in found if match]

    def current(self) -> str | None:
        """The name of the environment in use."""
        try:
            name = os.readlink(self.link)
        except OSError:
            return None
        return name if (self.folder / name).is_dir() else None

    @contextlib.contextmanager
    def locked(self, progress: Progress) -> Generator[IO[bytes], None, None]:
        """The lock on changes; waits for it, and says so.

        Raises:
            FolderError: the folder can't be written.
            OSError: the disk is full.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = open(self.folder / ".lock", "a+b")
        except OSError as error:
            if error.errno in FULL:
                raise
            raise FolderError(
                f"{error.filename or self.folder}: {error.strerror}: make it writable, or name another folder by "
                "XDG_DATA_HOME"
            ) from None
        # No unlocking but by closing: a child that outlives this process must keep the lock.
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress.line(f"{self.folder}: another install or removal is at work: waiting for its end")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock

    def unfinished(self) -> Path:
        """A new temporary name."""
        return self.folder / f"{UNFINISHED}{uuid.uuid4().hex}"

    def clean(self) -> None:
        """Removes what ended installs and removals left. Only under the lock."""
        for path in self.folder.glob(f"{UNFINISHED}*"):
            delete(path)

    def place(self, made: Path, name: str) -> None:
        """Gives a new environment its name. What had it before goes aside under a temporary one: a kill in between
        leaves neither, and never a part of one. Only under the lock."""
        target, aside = self.folder / name, self.unfinished()
        replaced = target.is_dir()
        if replaced:
            os.rename(target, aside)
        os.rename(made, target)
        sync_folder(self.folder)
        if replaced:
            delete(aside)

    def use(self, name: str) -> None:
        """Makes an environment the one in use, at once."""
        unfinished = self.unfinished()
        os.symlink(name, unfinished)
        os.replace(unfinished, self.link)
        sync_folder(self.folder)

    def remove(self, environment: Environment) -> str | None:
        """Removes an environment, and returns the name of the one in use then. Only under the lock."""
        if self.current() in (environment.name, None):
            others = [other for other in self.environments() if other != environment]
            # Of this package's version if possible: it is the one that this package can use.
            others.sort(key=lambda other: (other.version == VERSION, other.path.stat().st_mtime))
            # First the link: there is no moment in which it leads nowhere.
            if others:
                self.use(others[-1].name)
            else:
                self.link.unlink(missing_ok=True)
        aside = self.unfinished()
        os.rename(environment.path, aside)
        sync_folder(self.folder)
        delete(aside)
        return self.current()


def delete(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path)


def sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sync_contents(path: Path) -> None:
    """Brings what was written below a folder to the disk: after a power cut, too, a complete name must be a complete
    environment."""
    # For ten thousands of files, one call for the file system is much quicker than one for each. Python has it only for
    # all file systems, and one of those may be a dead network's.
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None).syncfs(folder) != 0:
            os.sync()
    finally:
        os.close(folder)
