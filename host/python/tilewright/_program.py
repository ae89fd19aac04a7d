"""Where the program is, and how it is told from a library of another version."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from .errors import ProgramError

#: The environment variable that names the program.
VARIABLE = "TILEWRIGHT_PROGRAM"

#: The command's own name.
NAME = "tilewright"

MISSING = (
    "the program is not installed here: install it beside a PyTorch 2.11 by pip install 'tilewright[engine]', "
    "or into an environment of its own by tilewright engine install"
)


def data_folder() -> Path:
    """The folder of private environments: `$XDG_DATA_HOME/tilewright` or `~/.local/share/tilewright`."""
    named = os.environ.get("XDG_DATA_HOME", "")
    base = Path(named) if os.path.isabs(named) else Path.home() / ".local" / "share"
    return base / "tilewright"


def private_environment() -> Path:
    """The link to the private environment that is in use."""
    return data_folder() / "engines" / "current"


def _in(site: str) -> Path:
    return Path(site, "tilewright_engine", "bin", NAME)


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _is_own_command(path: Path) -> bool:
    """True for a script that would come back here."""
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return True


def candidates() -> Iterator[Path]:
    """The places where the program may be, in the order in which they count, `TILEWRIGHT_PROGRAM` aside."""
    # Without importing anything: a search of the path takes less than an import.
    yield from (_in(site) for site in sys.path if site)
    sites = sorted((private_environment() / "lib").glob("python3*/site-packages"))
    yield from (_in(os.fspath(site)) for site in sites)
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = Path(folder, NAME)
        if folder and _is_program(path) and not _is_own_command(path):
            yield path


def find_program() -> Path:
    """The program: the one that `TILEWRIGHT_PROGRAM` names, or else that of this Python's environment, of the private
    environment, or on `PATH`.

    Raises:
        ProgramError: there is none.
    """
    named = os.environ.get(VARIABLE, "")
    if named:
        found = shutil.which(named)
        if found is None:
            raise ProgramError(f"{VARIABLE}: {named}: no such program: name the file, or leave the variable out")
        return Path(found)
    for path in candidates():
        if _is_program(path):
            return path
    raise ProgramError(MISSING)
