"""Messages: frozen dataclasses that are read from JSON and written to it, to the byte as the program writes it."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from json.encoder import encode_basestring as quoted
from math import isfinite
from typing import Any, Literal, TypeVar, Union, cast

Own = TypeVar("Own", bound="Message")

#: Turns a JSON value into a field's; raises ValueError if it is of another type.
Reader = Callable[[Any], Any]

#: The types of JSON's values, as errors have them.
NAMES: dict[type[Any], str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    type(None): "null",
    list: "a list",
    dict: "an object",
}


def expect(what: str, value: Any, *kinds: type[Any]) -> None:
    """Refuses an argument of another type.

    Raises:
        TypeError: it is of none of these types.
    """
    if not isinstance(value, kinds):
        names = dict.fromkeys("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise TypeError(f"{what}: expected {' or '.join(names)}, not {type(value).__name__}")


class _Misread(ValueError):
    """A field's value is of another type."""

    def __init__(self, expected: str, value: Any) -> None:
        super().__init__(f"expected {expected}, not {NAMES.get(value.__class__, value.__class__.__name__)}")
        self.expected = expected


def _unchanged(value: Any) -> Any:
    return value


def _of_type(kind: type[Any]) -> Reader:
    """How a value of one of JSON's own types is read."""
    # A whole number is a number, and truth is neither.
    wider: dict[type[Any], tuple[type[Any], ...]] = {float: (float, int), dict: (Mapping,)}
    kinds = wider.get(kind, (kind,))

    def read(value: Any) -> Any:
        if isinstance(value, kinds) and (kind is bool or not isinstance(value, bool)):
            return value
        raise _Misread(NAMES[kind], value)

    return read


def _of_kinds(kinds: Sequence[type[Message]]) -> Reader:
    """How one of several messages is read: each has a field `kind` with a value of its own."""
    named: dict[Any, type[Message]] = {}
    for kind in kinds:
        of = typing.get_type_hints(kind).get("kind")
        if typing.get_origin(of) is Literal:
            named.update(dict.fromkeys(typing.get_args(of), kind))

    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _Misread(NAMES[dict], value)
        found = cast(Mapping[str, Any], value)
        kind = named.get(str(found.get("kind")))
        return found if kind is None else kind.from_json(found)

    return read


def _of_message(kind: type[Message]) -> Reader:
    """How a message is read."""

    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _Misread(NAMES[dict], value)
        return kind.from_json(cast(Mapping[str, Any], value))

    return read


def _of_tuple(arguments: Sequence[Any]) -> Reader:
    """How a tuple of any length, or one of several types, is read."""
    readers = [_reader(one) for one in arguments if one is not Ellipsis]

    def read(value: Any) -> Any:
        # A message's own field has a tuple already.
        if not isinstance(value, (list, tuple)):
            raise _Misread(NAMES[list], value)
        found = cast("list[Any]", value)
        if Ellipsis in arguments:
            return tuple(map(readers[0], found))
        if len(readers) != len(found):
            raise _Misread(f"a list of {len(readers)}", value)
        return tuple(read(one) for read, one in zip(readers, found))

    return read


def _of_several(arguments: Sequence[Any]) -> Reader:
    """How a value of one of several types is read."""
    kinds = [one for one in arguments if isinstance(one, type) and issubclass(one, Message)]
    others = [_reader(one) for one in arguments if one not in kinds and one is not type(None)]
    readers = [_of_kinds(kinds) if len(kinds) > 1 else _reader(kinds[0]), *others] if kinds else others
    is_optional = type(None) in arguments

    def read(value: Any) -> Any:
        if is_optional and value is None:
            return None
        expected: list[str] = []
        for reader in readers:
            try:
                return reader(value)
            except _Misread as error:
                expected.append(error.expected)
        raise _Misread(" or ".join(expected), value)

    return read


def _reader(annotation: Any) -> Reader:
    """How values of a type are read. Fields and values that are not known are left as they are: a server may be newer
    than this package."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return _of_several(arguments)
    if origin is tuple:
        return _of_tuple(arguments)
    if origin is Literal:
        return _of_type(str)
    kind = dict if origin in (dict, Mapping) else annotation
    if kind in NAMES:
        return _of_type(kind)
    if isinstance(annotation, type) and issubclass(annotation, Message):
        return _of_message(annotation)
    return _unchanged


@functools.cache
def _fields(kind: type[Message]) -> dict[str, tuple[str, Reader]]:
    """The fields of a message by their names in JSON, each with its own name and how it is read."""
    hints = typing.get_type_hints(kind)
    return {field.name.rstrip("_"): (field.name, _reader(hints[field.name])) for field in dataclasses.fields(kind)}


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return value.to_dict()
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in cast(Mapping[str, Any], value).items()}
    return value


def _number(value: float) -> str:
    """A number as Rust's programs write it: the shortest digits, as in Python, but down to 1e-5 without an exponent,
    whose own digits have no zeros before them."""
    if not isfinite(value):
        raise ValueError(f"{value} is no number of JSON")
    text = repr(float(value))
    if "e-0" not in text:
        return text
    digits, exponent = text.split("e-0")
    if exponent != "5":
        return f"{digits}e-{exponent}"
    sign = "-" if digits.startswith("-") else ""
    return f"{sign}0.0000{digits.lstrip('-').replace('.', '')}"


def _written(value: Any) -> str:
    """A value as compact JSON text."""
    if isinstance(value, Message):
        return "{" + ",".join([f"{quoted(key)}:{_written(inner)}" for key, inner in _pairs(value)]) + "}"
    if isinstance(value, str):
        return quoted(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([_written(one) for one in cast("list[Any]", value)]) + "]"
    if isinstance(value, Mapping):
        pairs = cast(Mapping[str, Any], value).items()
        return "{" + ",".join([f"{quoted(key)}:{_written(inner)}" for key, inner in pairs]) + "}"
    raise TypeError(f"{type(value).__name__} can't be written as JSON")


def settings_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's settings by its own names for them: `min_tile`, as Python has names, is `min-tile`.

    Raises:
        TypeError: it is no mapping, or a value is none of a setting's.
    """
    expect("settings", settings, Mapping)
    for name, value in settings.items():
        expect("the name of a setting", name, str)
        expect(f"settings: {name!r}", value, bool, int, float, str)
    return {name.replace("_", "-"): value for name, value in settings.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Message:
    """A frozen dataclass of this package's, with the field names of its JSON.

    One that was read is written as it was: its fields in their order, and none that was absent.
    """

    #: The keys that it was read from, and the text that it was written as.
    __slots__ = ("_keys", "_text")

    @classmethod
    def from_json(cls: type[Own], value: str | bytes | Mapping[str, Any]) -> Own:
        """A message from JSON text, or from a mapping as `json.loads` gives it. Unknown fields are ignored.

        Raises:
            ValueError: it is no JSON object, a field is missing, or one has a value of another type.
        """
        try:
            found: Any = json.loads(value) if isinstance(value, (str, bytes)) else value
            if not isinstance(found, Mapping):
                raise ValueError(f"{cls.__name__}: expected a JSON object")
            read = cast(Mapping[str, Any], found)
            fields = _fields(cls)
            known: dict[str, Any] = {}
            for key, inner in read.items():
                if key in fields:
                    name, reader = fields[key]
                    try:
                        known[name] = reader(inner)
                    except _Misread as error:
                        raise ValueError(f"{cls.__name__}.{key}: {error}") from None
        except RecursionError:
            raise ValueError(f"{cls.__name__}: it is nested too deeply") from None
        try:
            message = cls(**known)
        except TypeError as error:
            raise ValueError(f"{cls.__name__}: {error}") from None
        object.__setattr__(message, "_keys", tuple(key for key in read if key in fields))
        return message

    def to_dict(self) -> dict[str, Any]:
        """The message as JSON's own types."""
        return {key: _plain(value) for key, value in _pairs(self)}

    def to_json(self) -> str:
        """The message as compact JSON text."""
        return _written(self)

    def __reduce__(self) -> tuple[Any, ...]:
        values = tuple(getattr(self, field.name) for field in dataclasses.fields(self))
        return _restored, (type(self), values, getattr(self, "_keys", None))


def _pairs(message: Message) -> Iterable[tuple[str, Any]]:
    """The fields by their names in JSON. Of a message that was not read, those that are None are left out."""
    fields = _fields(type(message))
    keys: tuple[str, ...] | None = getattr(message, "_keys", None)
    if keys is not None:
        return [(key, getattr(message, fields[key][0])) for key in keys]
    values = [(key, getattr(message, name)) for key, (name, _) in fields.items()]
    return [(key, value) for key, value in values if value is not None]


def _restored(kind: type[Message], values: tuple[Any, ...], keys: tuple[str, ...] | None) -> Message:
    """A message that was pickled or copied."""
    message = kind.__new__(kind)
    for field, value in zip(dataclasses.fields(kind), values):
        object.__setattr__(message, field.name, value)
    if keys is not None:
        object.__setattr__(message, "_keys", keys)
    return message


@contextmanager
def writing(what: str, refused: type[Exception]) -> Generator[None, None, None]:
    """Values of a caller become JSON text meanwhile.

    Raises:
        refused: one has a number or a text that JSON does not have.
    """
    try:
        yield
    except ValueError as error:
        raise refused(f"{what} can't be written as JSON: {error}") from None


def encodable(text: str) -> str:
    """The text.

    Raises:
        ValueError: half a character is in it.
    """
    text.encode()
    return text


def text_of(message: Message) -> str:
    """A message's JSON text, written once: for messages that are asked about again and again."""
    text: str | None = getattr(message, "_text", None)
    if text is None:
        text = message.to_json()
        object.__setattr__(message, "_text", text)
    return text
