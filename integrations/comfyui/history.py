"""Records of what the nodes of this pack decided and measured: the latest in memory, and in a file beside the pack."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Names the file, or is `off`; what turns off the program's history turns off this one, too.
VARIABLE = "TILEWRIGHT_COMFYUI_HISTORY"
PROGRAM_VARIABLE = "TILEWRIGHT_HISTORY"

#: Records that are kept in memory.
MOST = 256

#: Size in bytes beyond which the file loses its older half.
LARGEST_FILE = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Entry:
    """A record, and the node that it is of.

    Attributes:
        node: the node's id, as `TilewrightVAE`.
        record: the record as in JSON: of a prompt each stage is an entry of its own.
    """

    node: str
    record: dict[str, Any]


_lock = threading.Lock()
_entries: deque[Entry] = deque(maxlen=MOST)
_is_read = False


def history_file() -> Path | None:
    """The file that records are kept in, in the pack's own folder unless the environment names another: removing the
    pack removes it. None if no file is wanted."""
    named = os.environ.get(VARIABLE, "")
    if named == "off" or (not named and os.environ.get(PROGRAM_VARIABLE) == "off"):
        return None
    return Path(named) if named else Path(__file__).parent / "history.jsonl"


def add(record: dict[str, Any], *, node: str) -> None:
    """Adds a record; of what a prompt made, the record of each stage.

    Args:
        record: the record as in JSON, or a mapping with `stages`.
        node: the id of the node that it is of.
    """
    # The exchange with a policy is for replays, and has many times the size of the rest.
    added = [Entry(node, {k: v for k, v in one.items() if k != "exchange"}) for one in record.get("stages", [record])]
    with _lock:
        _read()
        _entries.extend(added)
        _write(added)


def latest() -> dict[str, Any] | None:
    """The record that was added last; None if there is none."""
    with _lock:
        _read()
        return _entries[-1].record if _entries else None


def records() -> list[dict[str, Any]]:
    """The records in memory, the latest last, and none of them twice."""
    return [entry.record for entry in entries()]


def entries() -> list[Entry]:
    """The records in memory with their nodes, the latest last."""
    with _lock:
        _read()
        return list(_entries)


def clear() -> None:
    """Forgets all records, and removes the file."""
    global _is_read
    with _lock:
        _entries.clear()
        _is_read = True
        file = history_file()
        if file is not None:
            file.unlink(missing_ok=True)


def _read() -> None:
    """Reads what earlier sessions left, at the first use."""
    global _is_read
    if _is_read:
        return
    _is_read = True
    file = history_file()
    try:
        lines = [] if file is None else file.read_text(encoding="utf-8", errors="replace").splitlines()[-MOST:]
    except OSError:
        return
    for line in lines:
        # A line may be half of one, if the disk was full.
        try:
            read = json.loads(line)
            _entries.append(Entry(str(read["node"]), dict(read["record"])))
        except (ValueError, TypeError, KeyError):
            continue


def _write(added: list[Entry]) -> None:
    """Appends to the file, as far as it can be written: a history is no reason for work to fail."""
    file = history_file()
    if file is None:
        return
    text = "".join(json.dumps({"node": entry.node, "record": entry.record}) + "\n" for entry in added)
    try:
        with file.open("a", encoding="utf-8") as opened:
            opened.write(text)
            is_large = opened.tell() > LARGEST_FILE
        if is_large:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
            shorter = file.with_suffix(".part")
            shorter.write_text("".join(lines[len(lines) // 2 :]), encoding="utf-8")
            shorter.replace(file)
    except OSError:
        return
