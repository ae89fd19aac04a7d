"""The server that jobs go to in place of an engine of this process, if the user names one: in the environment or in a
file, never in a workflow, which others may see or send."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

#: The server's address and token in the environment.
ADDRESS = "TILEWRIGHT_SERVER"
TOKEN = "TILEWRIGHT_TOKEN"

#: Keys of the file.
KEYS = ("server", "token-file", "certificates")

#: A line of the file: TOML with texts alone, which Python 3.10 has no reader for.
LINE = re.compile(r"""\s*([A-Za-z-]+)\s*=\s*("(?:[^"\\]|\\.)*"|'[^']*')\s*(?:#.*)?""")


@dataclass(frozen=True, slots=True)
class Server:
    """A server's address, and what it is trusted by.

    Attributes:
        address: the URL, or `unix:PATH`.
        token: the server's token, if it asks for one.
        certificates: a file with the authority's certificates (PEM); the system's are taken without one.
    """

    address: str
    token: str | None = None
    certificates: str | None = None


def named_server() -> Server | None:
    """The server that the user has named: the environment counts first, then `tilewright.toml` in ComfyUI's folder of
    the user, then `tilewright/comfyui.toml` in the user's configuration. None if nobody names one.

    Raises:
        TilewrightError: a file has a line that makes no sense.
    """
    address = os.environ.get(ADDRESS, "").strip()
    if address:
        return Server(address, os.environ.get(TOKEN) or None)
    for path in files():
        found = _read(path)
        if found is not None:
            return found
    return None


def files() -> list[Path]:
    """The files that may name a server, in the order in which they count."""
    import folder_paths

    base = os.environ.get("XDG_CONFIG_HOME", "")
    home = Path(base) if os.path.isabs(base) else Path.home() / ".config"
    return [Path(folder_paths.get_user_directory()) / "tilewright.toml", home / "tilewright" / "comfyui.toml"]


def _read(path: Path) -> Server | None:
    """The server that a file names; None if there is no file, or no server in it."""
    from tilewright.errors import TilewrightError

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise TilewrightError(f"{path}: it can't be read: {error}") from None
    values: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = LINE.fullmatch(line)
        if found is None or found[1] not in KEYS:
            raise TilewrightError(f'{path}:{number}: expected KEY = "TEXT" with one of {", ".join(KEYS)}')
        try:
            values[found[1]] = found[2][1:-1] if found[2].startswith("'") else json.loads(found[2])
        except ValueError:
            raise TilewrightError(f"{path}:{number}: {found[1]}: no such escape in a text") from None
    if not values.get("server"):
        return None
    return Server(values["server"], _token(path, values.get("token-file")), values.get("certificates"))


def _token(path: Path, named: str | None) -> str | None:
    """The token in a file, whose path is relative to the file that names it."""
    from tilewright.errors import TilewrightError

    if not named:
        return None
    place = path.parent / Path(named).expanduser()
    try:
        return place.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise TilewrightError(f"{place}: the token can't be read: {error}") from None
