"""The kinds of work of a batch: what their items may hold, and the requests that items become."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from .. import _wire, api
from ..errors import TilewrightError

#: The longest part of a name, in bytes, which leaves room for an ending.
LONGEST = 200

#: Settings of a sample that an item may have of its own.
SETTINGS = frozenset(
    field.name for field in dataclasses.fields(api.SampleFields) if field.name not in ("paths", "preview")
)


@dataclass(frozen=True)
class Work:
    """A kind of work.

    Attributes:
        name: its name, as the command has it.
        main: the field that each item has; a text is such an item.
        files: fields that are files: a path, a file's bytes or an array.
        texts: fields that are texts.
        settings: further fields, which are settings of the request.
    """

    name: str
    main: str
    files: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    settings: frozenset[str] = frozenset()

    def check(self, fields: Mapping[str, Any]) -> None:
        """Refuses an item.

        Raises:
            TilewrightError: it lacks its main field, or has one that this work does not know.
        """
        known = {"name", *self.files, *self.texts, *self.settings}
        for field in fields:
            if field not in known:
                raise TilewrightError(f"{field}: no such field in an item to {self.name}: it has {', '.join(sorted(known))}")
        if fields.get(self.main) is None:
            raise TilewrightError(f"{self.main}: an item to {self.name} needs one")

    def request(self, fields: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """The request that an item becomes, with what all items have in `options`."""
        own = {key: _plain(value) for key, value in fields.items() if value is not None and key in self.settings}
        common = dict(options)
        if self.name == "decode":
            return _wire.given({**common, **own})
        if self.name == "encode":
            frames = own.pop("frames", common.pop("frames", None))
            return _wire.of_encode(common.pop("model"), frames, {**common, **own})
        sample: dict[str, Any] = {**(common.pop("sample", None) or {}), **own}
        model = common.pop("model")
        if self.name == "sample":
            return _wire.of_sample(model, sample, common)
        negative = fields.get("negative_prompt") or common.pop("negative_prompt", None)
        common.pop("negative_prompt", None)
        return _wire.of_prompt(fields["prompt"], model, negative, sample, common)


DECODE = Work("decode", "latent", files=("latent",), settings=frozenset({"tensor"}))
ENCODE = Work("encode", "image", files=("image",), settings=frozenset({"frames"}))
GENERATE = Work(
    "generate", "prompt", files=("image", "mask"), texts=("prompt", "negative_prompt"), settings=SETTINGS
)
SAMPLE = Work(
    "sample", "conditioning", files=("conditioning", "negative", "latent", "noise", "mask"), settings=SETTINGS
)

#: All kinds, by name.
WORKS = {work.name: work for work in (DECODE, ENCODE, GENERATE, SAMPLE)}


def digest(*parts: Any) -> str:
    """A digest of items and requests: of texts, numbers, bytes and arrays, in hexadecimal."""
    found = hashlib.sha256()

    def update(value: Any) -> None:
        if isinstance(value, (bytes, bytearray, memoryview)):
            content = bytes(cast("bytes", value))
            found.update(b"b%d:" % len(content) + content)
        elif isinstance(value, Mapping):
            table = cast("Mapping[str, Any]", value)
            found.update(b"m%d:" % len(table))
            for key in sorted(table):
                update(key)
                update(table[key])
        elif hasattr(value, "tobytes") and hasattr(value, "shape"):
            update([str(value.dtype), list(value.shape), value.tobytes()])
        elif isinstance(value, (list, tuple)):
            row = list(cast("list[Any]", value))
            found.update(b"l%d:" % len(row))
            for one in row:
                update(one)
        else:
            text = json.dumps(_plain(value), sort_keys=True)
            found.update(f"t{len(text)}:{text}".encode())

    update(list(parts))
    return found.hexdigest()


def _plain(value: Any) -> Any:
    """A value as JSON has it: tables have NumPy's numbers and arrays."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return value


def check_name(name: Any) -> str:
    """A name of an output, which may lie in folders of its own below the batch's.

    Raises:
        TilewrightError: it leads elsewhere, or no file has such a name.
    """
    if not isinstance(name, str) or not name:
        raise TilewrightError(f"name: expected a text, not {name!r}")
    parts = name.split("/")
    is_fit = name.isprintable() and all(
        part and not part.startswith(".") and "\\" not in part and len(part.encode()) <= LONGEST for part in parts
    )
    if not is_fit:
        raise TilewrightError(f"name: {name!r} can't name an output: expected parts without a dot in front, joined by /")
    return name
