"""Where the program is, and its version as far as the files beside it say.

The command `tilewright` begins here: only modules that Python itself has loaded are imported, since each other one
takes milliseconds.
"""

from __future__ import annotations

import os
import sys

from .errors import ProgramError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: The environment variable that names the program.
VARIABLE = "TILEWRIGHT_PROGRAM"

#: The command's own name.
NAME = "tilewright"

#: Where the program is in a folder of packages.
PLACE = os.path.join("tilewright_engine", "bin", NAME)

#: The PyTorch that the program is built for.
TORCH = "2.11"

MISSING = (
    "the program is not installed here: install it beside a PyTorch 2.11 by pip install 'tilewright[engine]', "
    "or into an environment of its own by tilewright engine install"
)


def data_folder() -> str:
    """The folder of private environments: `$XDG_DATA_HOME/tilewright` or `~/.local/share/tilewright`.

    Raises:
        ProgramError: nobody says where it is.
    """
    base = os.environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            raise ProgramError("this user has no home folder: name the data folder by XDG_DATA_HOME")
        base = os.path.join(home, ".local", "share")
    return os.path.join(base, NAME)


def _private_sites() -> list[str]:
    """The folders of packages of the private environment that is in use."""
    try:
        libraries = os.path.join(data_folder(), "engines", "current", "lib")
        found = sorted(os.listdir(libraries))
    except (ProgramError, OSError):
        return []
    return [os.path.join(libraries, name, "site-packages") for name in found if name.startswith("python3")]


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _is_own_command(path: str) -> bool:
    """True for a script that would come back here."""
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return True


def _on_path(name: str) -> Iterator[str]:
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, name)
        if folder and _is_program(path):
            yield path


def candidates() -> Iterator[str]:
    """The places where the program may be, in the order in which they count, `TILEWRIGHT_PROGRAM` aside."""
    # Without importing anything: a search of the path takes less than an import.
    yield from (os.path.join(site, PLACE) for site in sys.path if site)
    yield from (os.path.join(site, PLACE) for site in _private_sites())
    yield from (path for path in _on_path(NAME) if not _is_own_command(path))


def find_program() -> str:
    """The program: the one that `TILEWRIGHT_PROGRAM` names, or else that of this Python's environment, of the private
    environment, or on `PATH`.

    Raises:
        ProgramError: there is none.
    """
    named = os.environ.get(VARIABLE, "")
    if named:
        for path in (named,) if os.path.dirname(named) else _on_path(named):
            if _is_program(path):
                return path
        raise ProgramError(f"{VARIABLE}: {named}: no such program: name the file, or leave the variable out")
    misfit = ""
    for path in candidates():
        if not _is_program(path):
            continue
        reason = _torch_fault(path)
        if not reason:
            return path
        misfit = misfit or reason
    raise ProgramError(misfit or MISSING)


def _torch_fault(program: str) -> str:
    """The reason that the PyTorch beside a packaged program does not serve it; empty if it does, or if the program is
    in no package."""
    if not program.endswith(os.sep + PLACE):
        return ""
    site = program.removesuffix(PLACE)
    advice = (
        f"install torch=={TORCH}.* there, or give the program an environment of its own by tilewright engine install"
    )
    try:
        with open(os.path.join(site, "torch", "version.py")) as file:
            found = file.read(4096)
    except OSError:
        return f"{site}: the program needs PyTorch {TORCH}, and there is none beside it: {advice}"
    # The file's first lines are of the form __version__ = '2.11.0+cpu'.
    said = found.partition("__version__ = ")[2].partition("\n")[0].strip("'\" ")
    if said == TORCH or said.startswith(f"{TORCH}."):
        return ""
    return f"{site}: the program needs PyTorch {TORCH}, and {said or 'another'} is beside it: {advice}"


def installed_version(program: str) -> str | None:
    """The version of the package that a program belongs to, by the name of the package's own record: None if it
    belongs to none, or if that does not say what the program would."""
    if not program.endswith(os.sep + PLACE):
        return None
    begin, end = "tilewright_engine-", ".dist-info"
    try:
        names = os.listdir(program.removesuffix(PLACE))
    except OSError:
        return None
    versions = [name[len(begin) : -len(end)] for name in names if name.startswith(begin) and name.endswith(end)]
    # A packager writes 0.2.0-rc.1 as 0.2.0rc1, and an interrupted one may leave two records.
    is_plain = len(versions) == 1 and versions[0].replace(".", "").isdecimal()
    return versions[0] if is_plain else None
