"""The place that a batch writes to, on a disk that all machines have or in an object store."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from .. import _wire
from ..errors import TilewrightError, one_line

pyfs: Any
try:
    import pyarrow.fs

    pyfs = pyarrow.fs
except ImportError:
    # Told when it is needed, in one line.
    pyfs = None

#: The folder of the records, below the outputs'.
RECORDS = "records"

#: The file of what failed.
FAILED = "failed.jsonl"


class Place:
    """A folder: a path, or an address as `s3://bucket/folder`, of any file system that PyArrow or fsspec knows.

    Raises:
        TilewrightError: there is no such file system.
    """

    def __init__(self, named: str) -> None:
        self.named = named
        self._fs, self._root = _resolved(named)
        self.is_local = isinstance(self._fs, pyfs.LocalFileSystem)

    def path(self, name: str) -> str:
        """The path of a file, as the file system has it."""
        return f"{self._root}/{name}"

    def make_folder(self, name: str) -> None:
        """Makes the folder that a file is in."""
        if self.is_local:
            with _told(self.shown(name)):
                os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)

    def shown(self, name: str) -> str:
        """A file's name in messages."""
        return f"{self.named.rstrip('/')}/{name}"

    def size(self, name: str) -> int | None:
        """A file's bytes; None if there is none."""
        with _told(self.shown(name)):
            info = self._fs.get_file_info(self.path(name))
        return int(info.size) if info.type == pyfs.FileType.File else None

    def read(self, name: str) -> bytes | None:
        """A file's content; None if there is none."""
        try:
            with self._fs.open_input_stream(self.path(name)) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise TilewrightError(f"{self.shown(name)}: {_wire.reason(error)}") from None

    def write(self, name: str, content: bytes) -> None:
        """Writes a file: no half of it ever has the name."""
        if self.is_local:
            self.make_folder(name)
            with _wire.written(self.path(name)) as file:
                file.write(content)
            return
        # An object is there once all of it has arrived.
        with _told(self.shown(name)), self._fs.open_output_stream(self.path(name)) as file:
            file.write(content)

    def remove(self, name: str) -> None:
        """Removes a file, if there is one."""
        if self.size(name) is not None:
            with _told(self.shown(name)):
                self._fs.delete_file(self.path(name))

    def made(self, name: str) -> dict[str, Any] | None:
        """An item's record, if its outputs are there and whole."""
        content = self.read(f"{RECORDS}/{name}.json")
        if content is None:
            return None
        try:
            found = json.loads(content)
            whole = all(self.size(file["file"]) == file["bytes"] for file in found["outputs"])
        except (ValueError, KeyError, TypeError):
            return None
        return found if whole else None


def files_of(named: str) -> list[tuple[str, str, int]]:
    """The files that a path, a folder or a pattern with `*`, `?` and `[…]` names: of each a path that can be opened, its
    path from the folder, and its bytes. Files and folders that begin with a dot are left out.

    Raises:
        TilewrightError: there is none.
    """
    from fnmatch import fnmatchcase

    fs, path = _resolved(named)
    scheme = named.partition("://")[0] + "://" if "://" in named else ""
    parts = path.split("/")
    first = next((index for index, part in enumerate(parts) if any(mark in part for mark in "*?[")), None)
    with _told(named):
        # A file may have such a name itself.
        info = fs.get_file_info(path)
        if info.type == pyfs.FileType.File:
            return [(_opened(scheme, fs, path), os.path.basename(path), int(info.size))]
        base = path if first is None else "/".join(parts[:first])
        found = fs.get_file_info(pyfs.FileSelector(base or "/", recursive=True, allow_not_found=True))
    wanted = [] if first is None else parts[first:]
    files: list[tuple[str, str, int]] = []
    for one in found:
        within = one.path[len(base) :].lstrip("/")
        steps = within.split("/")
        if one.type != pyfs.FileType.File or any(step.startswith(".") for step in steps):
            continue
        if first is not None and not (
            len(steps) == len(wanted) and all(fnmatchcase(step, mark) for step, mark in zip(steps, wanted, strict=True))
        ):
            continue
        files.append((_opened(scheme, fs, one.path), within, int(one.size)))
    if not files:
        raise TilewrightError(f"{named}: there is no such file: name a file, a folder or a pattern as 'latents/*.latent'")
    return sorted(files, key=lambda file: file[1])


def read_file(named: str) -> bytes | Path:
    """A file that an item names: its path where it is on this machine, else its content."""
    if "://" not in named:
        return Path(named)
    fs, path = _resolved(named)
    with _told(named), fs.open_input_stream(path) as file:
        return bytes(file.read())


def content_digest(content: Any) -> Any:
    """A digest of a file's content; bytes and arrays stand for themselves.

    Raises:
        TilewrightError: the file can't be read.
    """
    if not isinstance(content, Path):
        return content
    found = hashlib.sha256()
    with _told(str(content)), open(content, "rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()


def _opened(scheme: str, fs: Any, path: str) -> str:
    return path if isinstance(fs, pyfs.LocalFileSystem) else f"{scheme}{path}"


def _resolved(named: str) -> tuple[Any, str]:
    if pyfs is None:
        raise TilewrightError("Ray Data is not installed: pip install 'tilewright[ray]'")
    if "://" not in named:
        return pyfs.LocalFileSystem(), os.path.abspath(os.path.expanduser(named))
    try:
        fs, path = pyfs.FileSystem.from_uri(named)
    except (OSError, ValueError):
        try:
            import fsspec

            core: Any = fsspec.core
            of_fsspec, path = core.url_to_fs(named)
        except (ImportError, ValueError, OSError) as error:
            raise TilewrightError(f"{named}: no file system for it: {one_line(str(error))}") from None
        fs = pyfs.PyFileSystem(pyfs.FSSpecHandler(of_fsspec))
    return fs, path.rstrip("/")


class _told:  # noqa: N801 - it reads as a verb.
    """Errors of a file system become one line with the file's name."""

    def __init__(self, named: str) -> None:
        self._named = named

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (OSError, ValueError)):
            raise TilewrightError(f"{self._named}: {_wire.reason(error)}") from None
