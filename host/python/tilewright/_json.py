"""Messages: frozen dataclasses that are read from JSON and written to it."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Union, cast

Own = TypeVar("Own", bound="Message")

#: Turns a JSON value into a field's.
Reader = Callable[[Any], Any]


def _unchanged(value: Any) -> Any:
    return value


def _reader(annotation: Any) -> Reader:
    """How values of a type are read. Fields and values that are not known are left as they are: a server may be newer
    than this package."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        kinds = [one for one in arguments if isinstance(one, type) and issubclass(one, Message)]
        if len(kinds) == 1:
            return _reader(kinds[0])
        sequences = [one for one in arguments if typing.get_origin(one) is tuple]
        return _reader(sequences[0]) if sequences else _unchanged
    if origin is tuple:
        inner = _reader(arguments[0])
        return lambda value: tuple(map(inner, cast("list[Any]", value))) if isinstance(value, list) else value
    if isinstance(annotation, type) and issubclass(annotation, Message):
        return lambda value: annotation.from_json(cast(Mapping[str, Any], value)) if isinstance(value, Mapping) else value
    return _unchanged


@functools.cache
def _fields(kind: type[Message]) -> dict[str, tuple[str, Reader]]:
    """The fields of a message by their names in JSON, each with its own name and how it is read."""
    hints = typing.get_type_hints(kind)
    return {
        field.name.rstrip("_"): (field.name, _reader(hints[field.name])) for field in dataclasses.fields(kind)
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return value.to_dict()
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in cast(Mapping[str, Any], value).items()}
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Message:
    """A frozen dataclass of this package's, with the field names of its JSON."""

    @classmethod
    def from_json(cls: type[Own], value: str | bytes | Mapping[str, Any]) -> Own:
        """A message from JSON text, or from a mapping as `json.loads` gives it. Unknown fields are ignored.

        Raises:
            ValueError: it is no JSON object, or a field is missing.
        """
        found: Any = json.loads(value) if isinstance(value, (str, bytes)) else value
        if not isinstance(found, Mapping):
            raise ValueError(f"{cls.__name__}: expected a JSON object")
        read = cast(Mapping[str, Any], found)
        fields = _fields(cls)
        known = {fields[key][0]: fields[key][1](inner) for key, inner in read.items() if key in fields}
        try:
            return cls(**known)
        except TypeError as error:
            raise ValueError(f"{cls.__name__}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """The message as JSON's own types; what is None is left out."""
        fields = _fields(type(self))
        values = {key: getattr(self, name) for key, (name, _) in fields.items()}
        return {key: _plain(value) for key, value in values.items() if value is not None}

    def to_json(self) -> str:
        """The message as JSON text."""
        return json.dumps(self.to_dict(), separators=(",", ":"))
