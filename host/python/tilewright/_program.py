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

#: The way that leaves every other package as it is.
_PRIVATE = "an environment of its own by tilewright engine install (see tilewright engine --help)"


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


def _private() -> tuple[str, list[str]]:
    """The private environment that is in use, and its folders of packages; empty if there is none."""
    try:
        link = os.path.join(data_folder(), "engines", "current")
        name = os.path.basename(os.readlink(link))
    except (ProgramError, OSError):
        return "", []
    libraries = os.path.join(link, "lib")
    try:
        pythons = sorted(os.listdir(libraries))
    except OSError:
        # Without its packages it is damaged, without its folder it was removed.
        return (name if os.path.isdir(link) else ""), []
    return name, [os.path.join(libraries, each, "site-packages") for each in pythons if each.startswith("python3")]


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def is_script(path: str) -> bool:
    """True for a script, which may lead back to this command."""
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
    yield from (os.path.join(site, PLACE) for site in _private()[1])
    yield from (path for path in _on_path(NAME) if not is_script(path))


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
    raise ProgramError(_damage() or misfit or _missing())


def torch_beside(site: str) -> str:
    """The version of the PyTorch in a folder of packages; empty if there is none."""
    try:
        with open(os.path.join(site, "torch", "version.py"), encoding="utf-8", errors="replace") as file:
            found = file.read(4096)
    except OSError:
        return ""
    # The file's first lines are of the form __version__ = '2.11.0+cpu'.
    return found.partition("__version__ = ")[2].partition("\n")[0].strip("'\" ") or "of an unknown version"


def serves(torch: str) -> bool:
    """True for a version of PyTorch that the program runs with."""
    return torch == TORCH or torch.startswith(f"{TORCH}.")


def fault_of(site: str) -> str:
    """What is wrong with a private environment's folder of packages; empty if nothing is."""
    if not _is_program(os.path.join(site, PLACE)):
        return "its program is gone"
    torch = torch_beside(site)
    if not torch or not os.path.isfile(os.path.join(site, "torch", "lib", "libtorch.so")):
        return "its PyTorch is gone"
    return "" if serves(torch) else f"its PyTorch is {torch}, and the program needs {TORCH}"


def _damage() -> str:
    """The reason that the private environment in use does not serve; empty if there is none, or if it does."""
    name, sites = _private()
    faults = [fault_of(site) for site in sites] or ["its packages are gone"]
    if not name or not all(faults):
        return ""
    return (
        f"the private environment {name} is damaged: {faults[0]}: run tilewright engine remove {name} and tilewright "
        "engine install"
    )


def _torch_elsewhere(site: str) -> tuple[str, str]:
    """The folder and the version of the PyTorch that this Python has, in another folder than a certain one."""
    for folder in sys.path:
        torch = torch_beside(folder) if folder and os.path.realpath(folder) != os.path.realpath(site) else ""
        if torch:
            return folder, torch
    return "", ""


def _missing() -> str:
    """What to say where there is no program."""
    folder, torch = _torch_elsewhere("")
    if torch and not serves(torch):
        # pip would put the program's PyTorch in place of it.
        return (
            f"the program is not installed here, and PyTorch {torch} in {folder} is not the {TORCH} that it needs: "
            f"give it {_PRIVATE}"
        )
    return (
        f"the program is not installed here: install it beside a PyTorch {TORCH} by pip install 'tilewright[engine]', "
        f"or into {_PRIVATE}"
    )


def _torch_fault(program: str) -> str:
    """The reason that the PyTorch beside a packaged program does not serve it; empty if it does, or if the program is
    in no package."""
    if not program.endswith(os.sep + PLACE):
        return ""
    site = program.removesuffix(os.sep + PLACE)
    if site in _private()[1]:
        return fault_of(site)
    needs = f"{site}: the program needs PyTorch {TORCH} beside it, and"
    torch = torch_beside(site)
    if torch:
        return "" if serves(torch) else f"{needs} {torch} is there: give it {_PRIVATE}"
    folder, torch = _torch_elsewhere(site)
    if torch:
        return f"{needs} {torch} is in {folder}: give it {_PRIVATE}"
    return f"{needs} there is none: install torch=={TORCH}.* there, or give it {_PRIVATE}"


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
