"""The command `tilewright`: the program takes this process over; `engine` is for where there is none yet."""

from __future__ import annotations

import errno
import os
import sys

from ._program import NAME, VARIABLE, find_program, installed_version, is_script
from .errors import ProgramError

#: What this package does itself.
OWN = "engine"

#: The environment variable with the process that became a program, and that program.
MARK = "TILEWRIGHT_COMMAND"

#: A standard output that nobody reads.
_UNREAD = (errno.EPIPE, errno.EBADF)


def main() -> int:
    """Runs the command."""
    try:
        return _run(sys.argv[1:])
    except KeyboardInterrupt:
        return _failed("interrupted", 130)


def _run(arguments: list[str]) -> int:
    if arguments[:1] == [OWN]:
        from ._environments import main as manage

        return manage(arguments[1:])
    try:
        program = find_program()
        _mark(program)
    except ProgramError as error:
        return _failed(str(error), 2)
    if arguments in (["--version"], ["-V"]):
        # The program loads PyTorch before it answers anything.
        version = installed_version(program)
        if version is not None:
            return _say(f"{NAME} {version}")
    try:
        os.execv(program, [program, *arguments])
    except OSError as error:
        return _failed(f"{program}: {error.strerror}", 2)


def _mark(program: str) -> None:
    """Leaves a mark for the case that the program leads back here.

    Raises:
        ProgramError: it did.
    """
    mark = os.environ.get(MARK, "")
    # A process keeps its number when it becomes another program. A script may also start this as its child.
    back = mark == f"{os.getpid()} {program}" or (mark == f"{os.getppid()} {program}" and is_script(program))
    if back:
        raise ProgramError(
            f"{VARIABLE}: {program}: is this command itself: name the program's file, or leave the variable out"
        )
    os.environ[MARK] = f"{os.getpid()} {program}"


def _say(line: str) -> int:
    """Prints a line; returns the status to end with."""
    try:
        os.write(1, f"{line}\n".encode())
    except OSError as error:
        return 0 if error.errno in _UNREAD else _failed(f"standard output: {error.strerror}", 1)
    return 0


def _failed(line: str, status: int) -> int:
    """Prints an error; returns the status."""
    try:
        os.write(2, f"error: {line}\n".encode(errors="surrogateescape"))
    except OSError:
        # Nobody reads it.
        pass
    return status
