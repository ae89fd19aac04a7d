"""Tables of a configuration as TOML (https://toml.io/en/v1.0.0)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        # A basic string has the escapes of JSON's, but for the sign of deletion, which it has to escape.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        table = cast(Mapping[str, Any], value)
        return "{ " + ", ".join(f"{_value(key)} = {_value(inner)}" for key, inner in table.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, cast("list[Any]", value))) + "]"
    raise TypeError(f"a configuration has no {type(value).__name__}")


def _lines(table: Mapping[str, Any], path: str) -> Iterator[str]:
    for key, value in table.items():
        if not isinstance(value, Mapping):
            yield f"{_value(key)} = {_value(value)}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            name = f"{path}.{_value(key)}" if path else _value(key)
            yield f"[{name}]"
            yield from _lines(cast(Mapping[str, Any], value), name)


def dumps(config: Mapping[str, Any]) -> str:
    """A configuration as text; lists of tables stand in one line."""
    return "\n".join(_lines(config, "")) + "\n"
