"""The command `tilewright`: the program takes this process over; `engine` is for where there is none yet."""

from __future__ import annotations

import os
import sys

from ._program import NAME, find_program, installed_version
from .errors import ProgramError

#: What this package does itself.
OWN = "engine"


def main() -> int:
    """Runs the command."""
    arguments = sys.argv[1:]
    if arguments[:1] == [OWN]:
        from ._environments import main as manage

        return manage(arguments[1:])
    program = NAME
    try:
        program = find_program()
        if arguments in (["--version"], ["-V"]):
            # The program loads PyTorch before it answers anything.
            version = installed_version(program)
            if version is not None:
                os.write(1, f"{NAME} {version}\n".encode())
                return 0
        os.execv(program, [program, *arguments])
    except ProgramError as error:
        line = str(error)
    except OSError as error:
        line = f"{program}: {error.strerror}"
    os.write(2, f"error: {line}\n".encode(errors="surrogateescape"))
    return 2
