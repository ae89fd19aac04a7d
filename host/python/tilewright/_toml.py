"""Tables and sizes of a configuration, as TOML (https://toml.io/en/v1.0.0)."""

from __future__ import annotations

import json
import operator
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from .errors import TilewrightError

#: Units of sizes, as the program knows them; their letters may be of any case.
UNITS = {
    "": 1, "b": 1,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip

#: What a size is, for errors.
SIZE = "a number of bytes, or a text as 8GiB, 512MiB or 1.5GB"


def bytes_of(size: int | str) -> int:
    """A size in bytes, which has a unit if it is a text.

    Raises:
        ValueError: it is no size, or not from 1 to 2⁶³ − 1 bytes.
        TypeError: it is neither a text nor a whole number.
    """
    if isinstance(size, str):
        found = re.fullmatch(r"\s*([0-9]+|[0-9]*\.[0-9]+|[0-9]+\.)\s*([a-z]*)\s*", size, re.ASCII | re.IGNORECASE)
        scale = UNITS.get(found[2].lower()) if found else None
        if found is None or scale is None:
            raise ValueError
        count = int(found[1]) * scale if found[1].isdecimal() else int(float(found[1]) * scale)
    elif isinstance(size, bool):
        raise ValueError
    else:
        count = operator.index(size)
    if not 1 <= count < 2**63:
        raise ValueError
    return count


def merged(table: Mapping[str, Any], others: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A table with the keys of another one, which count more; tables in it are merged, too.

    Args:
        name: what the other one is called in errors.

    Raises:
        TypeError: a value is in the place of a table.
    """
    whole = dict(table)
    for key, other in others.items():
        own = whole.get(key)
        if isinstance(own, Mapping):
            place = f"{name}: {key}"
            if not isinstance(other, Mapping):
                raise TypeError(f"{place}: expected a mapping, not {type(other).__name__}")
            other = merged(cast(Mapping[str, Any], own), cast(Mapping[str, Any], other), place)
        whole[key] = other
    return whole


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise TilewrightError(f"{value!r}: a configuration has UTF-8 alone") from None
        # A basic string has the escapes of JSON's, but for the sign of deletion, which it has to escape.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        table = cast(Mapping[str, Any], value)
        return "{ " + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in table.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, cast("list[Any]", value))) + "]"
    if isinstance(value, os.PathLike):
        return _value(os.fspath(cast("os.PathLike[str]", value)))
    raise TypeError(f"a configuration has no {type(value).__name__}")


def _key(key: Any) -> str:
    if isinstance(key, str):
        return _value(key)
    raise TypeError(f"a configuration has no key that is {type(key).__name__}")


def _lines(table: Mapping[str, Any], path: str) -> Iterator[str]:
    named = [(key, f"{path}.{_key(key)}" if path else _key(key), value) for key, value in table.items()]
    for key, name, value in named:
        if not isinstance(value, Mapping):
            try:
                yield f"{_key(key)} = {_value(value)}"
            except TypeError as error:
                raise TypeError(f"{name}: {error}") from None
    for _, name, value in named:
        if isinstance(value, Mapping):
            yield f"[{name}]"
            yield from _lines(cast(Mapping[str, Any], value), name)


def dumps(config: Mapping[str, Any]) -> str:
    """A configuration as text; lists of tables stand in one line."""
    return "\n".join(_lines(config, "")) + "\n"
