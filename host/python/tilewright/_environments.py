"""The command `tilewright engine`: environments of their own for the program, beside a Python that has another PyTorch.

An environment is made under a temporary name and gets its own only when its program has run.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import venv
import zipfile
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from . import __version__ as VERSION
from ._flavours import FLAVOURS, Flavour, detect, nvidia_smi, refusal_here
from ._installer import FULL, InstallerFailed, LocalFault, OutputFailed, Progress, Workplace, installer, writing
from ._program import TORCH, data_folder
from ._store import ENGINE, FolderError, Store, fault, program, sync_contents
from .errors import ProgramError, TilewrightError, without_password

ABOUT = (
    "Environments of their own for the Tilewright program, each with a PyTorch. For a Python whose own PyTorch is of "
    "another version, or that has none: as that of ComfyUI."
)


#: About the megabytes of the engine's wheel, fetched and unpacked.
ENGINE_MB = (60, 110)

# What the system says of a folder that the user named, or owns, and that can't be used.
_UNUSABLE = (
    errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EPERM, errno.EROFS,
)  # fmt: skip


class UsageError(TilewrightError):
    """Arguments, files or a machine that can't be used."""


class _Stopped(KeyboardInterrupt):
    """A signal asks for the end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _engines() -> Store:
    """
    Raises:
        TilewrightError: nobody says where the data folder is.
    """
    return Store(Path(data_folder(), "engines"))


def _megabytes(count: int) -> str:
    return f"{max(1, round(count / 1e6))} MB"


def _free(path: Path) -> int:
    """The free bytes where a folder is or will be."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


@dataclass(frozen=True)
class Order:
    """What to install.

    Attributes:
        flavour: PyTorch's build.
        why: what it was chosen by.
        index: the address of torch's index.
        engine: the engine's requirement: a name with its version, or a file.
        torch: torch's requirement: a name with its version, or a file.
        find_links: more folders with wheels.
    """

    flavour: Flavour
    why: str
    index: str
    engine: str
    torch: str
    find_links: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{VERSION}-torch{TORCH}-{self.flavour.name}"

    @property
    def bytes(self) -> int:
        """About the room that it takes while it is installed."""
        return (self.flavour.download_mb + self.flavour.installed_mb) * 1_000_000


def _contents(name: str) -> tuple[str, str]:
    """The package in a wheel, and its version: by what is in it, since a file can have any name.

    Raises:
        UsageError: it is no wheel.
    """
    if not name.endswith(".whl") or not os.path.isfile(name):
        raise UsageError(f"--wheel {name}: no such wheel: name a file that ends with .whl")
    try:
        with zipfile.ZipFile(name) as archive:
            inside = archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile):
        inside = []
    for path in inside:
        found = re.fullmatch(r"([^/-]+)-([^/-]+)\.dist-info/METADATA", path)
        if found is not None:
            return re.sub(r"[-_.]+", "-", found[1]).lower(), found[2]
    raise UsageError(f"--wheel {name}: is no wheel, or damaged: fetch or build it again")


def _wheels(names: Sequence[str]) -> tuple[str, str]:
    """The requirements of the engine and of torch, given files of wheels.

    Raises:
        UsageError: a file is missing, damaged, or of another package or version.
    """
    engine, torch = f"{ENGINE}=={VERSION}", f"torch=={TORCH}.*"
    for name in names:
        package, version = _contents(name)
        file = os.path.abspath(name)
        if package == ENGINE:
            if version != VERSION:
                raise UsageError(f"--wheel {name}: version {version}, and this is tilewright {VERSION}: build that one")
            engine = file
        elif package == "torch":
            if not version.startswith(f"{TORCH}."):
                raise UsageError(f"--wheel {name}: PyTorch {version}: {TORCH} is needed")
            torch = file
        else:
            raise UsageError(
                f"--wheel {name}: of the package {package}: name wheels of {ENGINE} and torch alone, and the folder of "
                "others by --find-links"
            )
    return engine, torch


def _index(address: str) -> str:
    """An index's address.

    Raises:
        UsageError: it is none.
    """
    try:
        parts = urlsplit(address)
        good = bool(parts.netloc) if parts.scheme in ("http", "https") else parts.scheme == "file"
    except ValueError:
        good = False
    if not good:
        raise UsageError(
            f"--index-url {without_password(address) or repr(address)}: no address: give one as {FLAVOURS[0].index}"
        )
    return address


def _places(names: Sequence[str]) -> tuple[str, ...]:
    """Folders of wheels, absolute: the installer runs elsewhere.

    Raises:
        UsageError: there is no such folder.
    """
    for name in names:
        if "://" not in name and not os.path.isdir(name):
            raise UsageError(f"--find-links {without_password(name)}: no such folder")
    return tuple(name if "://" in name else os.path.abspath(name) for name in names)


def _flavour(name: str | None) -> tuple[Flavour, str]:
    """A flavour and what it was chosen by.

    Raises:
        UsageError: there is none of that name for this machine.
    """
    if name is None:
        return detect(command=nvidia_smi())
    machine = os.uname().machine
    offered = [flavour for flavour in FLAVOURS if machine in flavour.machines]
    for flavour in offered:
        if flavour.name == name:
            return flavour, "named"
    there = ", ".join(flavour.name for flavour in offered)
    raise UsageError(f"--torch {name}: PyTorch {TORCH} has no such build for {machine}: there are {there}")


def order(options: argparse.Namespace) -> Order:
    """What the arguments ask for.

    Raises:
        UsageError: they make no sense.
    """
    flavour, why = _flavour(options.torch)
    engine, torch = _wheels(options.wheel)
    index = flavour.index if options.index_url is None else _index(options.index_url)
    return Order(flavour, why, index, engine, torch, _places(options.find_links))


def _plan(order: Order, store: Store) -> Iterator[str]:
    """The lines that are said before anything is fetched."""
    flavour = order.flavour
    given = [os.path.basename(order.torch)] if order.torch.endswith(".whl") else []
    more = "".join(f", {without_password(place)}" for place in order.find_links)
    from_file = order.engine.endswith(".whl")
    yield f"engine: {ENGINE} {VERSION} from {order.engine if from_file else f'PyPI or the index of pip{more}'}"
    yield f"torch:  PyTorch {TORCH} {flavour.name}: {flavour.use} ({order.why})"
    yield f"        from {', '.join([*given, without_password(order.index)])}{more}"
    yield f"size:   about {flavour.download_mb} MB to fetch, about {flavour.installed_mb} MB on the disk"
    yield f"into:   {store.folder / order.name}, {_megabytes(_free(store.folder))} free"


def _check_torch(path: Path, flavour: Flavour) -> None:
    """
    Raises:
        TilewrightError: an environment's PyTorch is of another build.
    """
    for found in path.glob("lib/python3*/site-packages/torch-*.dist-info"):
        version = found.name.removeprefix("torch-").removesuffix(".dist-info")
        build = version.partition("+")[2]
        # PyPI's own has no name of its build.
        if build and not build.startswith(flavour.name):
            raise TilewrightError(
                f"torch {version} was found where {flavour.name} was asked for: leave out what else offers a torch "
                "(--find-links, --index-url, pip's own settings)"
            )


def _check_program(path: Path, workplace: Workplace) -> None:
    """
    Raises:
        TilewrightError: an environment's program doesn't run, or is of another version.
    """
    file = program(path)
    try:
        said = " ".join(workplace.run([os.fspath(file), "--version"]))
    except InstallerFailed as error:
        raise TilewrightError(f"{file.name} --version failed: {error}") from None
    if said.split()[1:2] != [VERSION]:
        raise TilewrightError(f"{file.name} --version says {said!r}: {VERSION} is needed")


def _make(order: Order, path: Path, workplace: Workplace, progress: Progress) -> None:
    """Makes an environment at `path`.

    Raises:
        TilewrightError: it can't be made; parts of it may be there.
    """
    progress.line("making the environment")
    try:
        venv.EnvBuilder(symlinks=True).create(path)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise TilewrightError(f"{path}: {sys.executable} can't make an environment: {error}") from None
    packages = installer(path / "bin" / "python", workplace)
    # The engine first: it is small, and without it all the rest is of no use.
    try:
        packages.install([order.engine], order.find_links, None, False, ENGINE_MB, progress)
    except LocalFault:
        raise
    except InstallerFailed as error:
        raise TilewrightError(
            f"{ENGINE} {VERSION}: {error}: where it is not published, build its wheel by cargo xtask wheel and give it "
            "by --wheel FILE"
        ) from None
    megabytes = (order.flavour.download_mb, order.flavour.installed_mb)
    try:
        packages.install([order.torch, order.engine], order.find_links, order.index, True, megabytes, progress)
    except LocalFault:
        raise
    except InstallerFailed as error:
        raise TilewrightError(
            f"PyTorch {TORCH} {order.flavour.name} from {without_password(order.index)}: {error}: check the network and the room "
            "on the disk, and run this again"
        ) from None
    _check_torch(path, order.flavour)
    progress.line("trying the program")
    _check_program(path, workplace)
    progress.line("writing it to the disk")
    sync_contents(path)


def _is_sound(path: Path, workplace: Workplace, progress: Progress) -> bool:
    """True if there is an environment whose program runs."""
    if not path.is_dir():
        return False
    damage = fault(path)
    if not damage:
        try:
            _check_program(path, workplace)
        except TilewrightError as error:
            damage = str(error)
    if damage:
        progress.line(f"{path.name} is there but damaged ({damage}): making it anew")
    return not damage


def install(options: argparse.Namespace, progress: Progress) -> None:
    """Makes an environment and puts it to use.

    Raises:
        TilewrightError: it can't be made: then nothing has changed.
    """
    refused = refusal_here(bool(options.wheel or options.find_links))
    if refused is not None:
        raise UsageError(refused)
    ordered = order(options)
    store = _engines()
    for line in _plan(ordered, store):
        progress.line(line)
    if options.dry_run:
        return
    target = store.folder / ordered.name
    with store.locked(progress) as lock:
        store.clean()
        unfinished = store.unfinished()
        unfinished.mkdir()
        try:
            workplace = Workplace(unfinished, lock)
            is_new = not _is_sound(target, workplace, progress)
            if is_new:
                if _free(store.folder) < ordered.bytes:
                    raise TilewrightError(
                        f"{store.folder}: {_megabytes(_free(store.folder))} free, about {_megabytes(ordered.bytes)} "
                        "needed: make room, or name another folder by XDG_DATA_HOME"
                    )
                environment = unfinished / "environment"
                _make(ordered, environment, workplace, progress)
                store.place(environment, ordered.name)
            store.use(ordered.name)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    progress.line(f"{ordered.name} {'is installed' if is_new else 'was installed before'} and in use now")


def listing(options: argparse.Namespace, progress: Progress) -> None:
    """Prints the environments.

    Raises:
        TilewrightError: their folder can't be read.
    """
    store = _engines()
    current = store.current()
    rows: list[dict[str, Any]] = [
        {
            "name": environment.name,
            "version": environment.version,
            "torch": environment.torch,
            "flavour": environment.flavour,
            "bytes": environment.size(),
            "current": environment.name == current,
            "damaged": fault(environment.path) or None,
            "path": os.fspath(environment.path),
        }
        for environment in store.environments()
    ]
    if options.json:
        progress.line(json.dumps(rows, indent=2))
        return
    if not rows:
        progress.line(f"none in {store.folder}: tilewright engine install makes one")
        return
    table = [("NAME", "TORCH", "SIZE", "IN USE")]
    for row in rows:
        used = f"{'yes' if row['current'] else 'no'}{', damaged' if row['damaged'] else ''}"
        table.append((row["name"], f"{row['torch']} {row['flavour']}", _megabytes(row["bytes"]), used))
    widths = [max(len(line[column]) for line in table) for column in range(4)]
    for name, torch, size, used in table:
        progress.line(f"{name.ljust(widths[0])}  {torch.ljust(widths[1])}  {size.rjust(widths[2])}  {used}")


def remove(options: argparse.Namespace, progress: Progress) -> None:
    """Removes environments.

    Raises:
        UsageError: one of them is not there: then none is removed.
        TilewrightError: the folder can't be written.
    """
    if options.all == bool(options.names):
        raise UsageError("name the environments to remove (tilewright engine list shows them), or give --all")
    store = _engines()
    with store.locked(progress) if store.folder.is_dir() else contextlib.nullcontext():
        store.clean()
        there = {environment.name: environment for environment in store.environments()}
        for name in options.names:
            if name not in there:
                known = ", ".join(there) or "none"
                raise UsageError(f"{name}: no such environment in {store.folder}: there are {known}")
        for name in list(there) if options.all else dict.fromkeys(options.names):
            used = store.remove(there[name])
            progress.line(f"{name} is removed, {'none' if used is None else used} is in use now")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}: {self.prog} --help shows how")


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    flavours = "".join(
        f"  {flavour.name:9}{flavour.use}, about {flavour.download_mb} MB to fetch\n" for flavour in FLAVOURS
    )
    top = _Parser(prog="tilewright engine", description=ABOUT)
    top.add_argument(
        "-V", "--version", action="version", version=f"tilewright (Python package) {VERSION}",
        help="print the version of this package; tilewright --version prints the program's",
    )  # fmt: skip
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    new = commands.add_parser(
        "install",
        help="make an environment and put it to use",
        description=(
            f"Makes an environment with the program and PyTorch {TORCH} in the folder\n"
            "$XDG_DATA_HOME/tilewright/engines (~/.local/share/tilewright/engines) and puts it to use.\n"
            "What is fetched, from where and how much is said first. It gets its name only when it is\n"
            "complete; whatever goes wrong, those that were there stay as they were.\n"
            "uv is used if it is on PATH and pip has no settings of its own, else pip, whose proxies,\n"
            "indexes and certificates count."
        ),
        epilog=f"builds of PyTorch {TORCH}:\n{flavours}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("--torch", metavar="BUILD", help="PyTorch's build (default: by the driver of this machine's GPU)")
    new.add_argument("--index-url", metavar="URL", help="PyTorch's index (default: that of the build, see below)")
    new.add_argument(
        "--wheel", metavar="FILE", action="append", default=[],
        help="a wheel of tilewright_engine or torch in place of the one in an index; can be repeated",
    )  # fmt: skip
    new.add_argument(
        "--find-links", metavar="FOLDER", action="append", default=[],
        help="a folder with wheels, besides the indexes; can be repeated",
    )  # fmt: skip
    new.add_argument("--dry-run", action="store_true", help="say what would be fetched, and stop")
    new.add_argument("--verbose", action="store_true", help="show all that the installer says")
    new.set_defaults(act=install)

    show = commands.add_parser("list", help="show the environments", description="Shows the environments.")
    show.add_argument("--json", action="store_true", help="as JSON, sizes in bytes")
    show.set_defaults(act=listing)

    gone = commands.add_parser(
        "remove",
        help="remove environments",
        description="Removes environments. If one was in use, the newest of the others is used then.",
    )
    gone.add_argument("names", metavar="NAME", nargs="*", help="as tilewright engine list shows it")
    gone.add_argument("--all", action="store_true", help="all of them")
    gone.set_defaults(act=remove)
    return top


@contextlib.contextmanager
def _orderly_end() -> Generator[None, None, None]:
    """A request to end is handled as that of the keyboard: children are ended and unfinished files removed."""

    def stop(number: int, _frame: Any) -> NoReturn:
        raise _Stopped(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # One that is ignored stays so: that is how nohup works.
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _forget_output() -> None:
    """Leaves out what is still to be printed: at its end Python would complain that it can't."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: list[str]) -> int:
    """Runs `tilewright engine`; returns 0 if it is done, 1 if it failed, 2 if the arguments or the machine are wrong,
    and more if a signal ended it."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        # An installer's lines may have characters that the terminal has not.
        reconfigure(errors="replace")
    if not sys.stdout:
        # It is closed.
        sys.stdout = open(os.devnull, "w")
    only_shows = True
    try:
        try:
            options = parser().parse_args(arguments)
        except SystemExit:
            # The help or the version was asked for.
            with writing():
                sys.stdout.flush()
            return 0
        only_shows = options.act is listing
        progress = Progress(sys.stdout, getattr(options, "verbose", False))
        with _orderly_end():
            options.act(options, progress)
        return 0
    except KeyboardInterrupt as stop:
        number = stop.number if isinstance(stop, _Stopped) else signal.SIGINT
        line, status = "interrupted: nothing unfinished is in use", 128 + number
    except BrokenPipeError:
        _forget_output()
        return 0 if only_shows else 1
    except OutputFailed as error:
        _forget_output()
        line, status = str(error), 1
    except (UsageError, FolderError, ProgramError) as error:
        line, status = str(error), 2
    except TilewrightError as error:
        line, status = str(error), 1
    except OSError as error:
        status = 2 if error.errno in _UNUSABLE else 1
        advice = ": make room, or name another folder by XDG_DATA_HOME" if error.errno in FULL else ""
        line = f"{error.filename or 'engine'}: {error.strerror or error}{advice}"
    print(f"error: {line}", file=sys.stderr)
    return status
