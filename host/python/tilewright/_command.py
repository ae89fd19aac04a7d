"""The command `tilewright`: the program takes this process over; `engine` is for where there is none yet."""

from __future__ import annotations

import os
import sys

from ._program import find_program
from .errors import ProgramError

#: What this package does itself.
OWN = "engine"


def main() -> int:
    """Runs the command."""
    arguments = sys.argv[1:]
    if arguments[:1] == [OWN]:
        from ._environments import main as manage

        return manage(arguments[1:])
    try:
        program = find_program()
        os.execv(program, [os.fspath(program), *arguments])
    except ProgramError as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        print(f"error: {program}: {error.strerror}", file=sys.stderr)
    return 2
