"""Python types from JSON schemas: frozen dataclasses, unions of them, and names. make_api.py and make_records.py write
modules of them."""

from __future__ import annotations

import json
import keyword
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

Schema = dict[str, Any]

PLAIN = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "object": "dict[str, Any]",
    "null": "None",
}

#: Rust's links: [`Cost`] and [`Mixed`](crate::Mixed).
LINK = re.compile(r"\[(`[^`]+`)\](\([^)]*\))?")


def name_of(reference: str) -> str:
    name = reference.rsplit("/", 1)[-1]
    return name.removesuffix("Body").removesuffix("Name") or name


def field_name(name: str) -> str:
    return name + "_" if keyword.iskeyword(name) else name


def camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))


def kind_of(schema: Schema) -> str | None:
    """The kind that a part of a tagged union has."""
    return schema.get("properties", {}).get("kind", {}).get("const")


def is_tagged(schema: Schema) -> bool:
    """True if each of several objects has a `kind` of its own."""
    return bool(schema.get("oneOf")) and all(kind_of(part) is not None for part in schema["oneOf"])


def is_names(schema: Schema) -> bool:
    """True if it is one of several words."""
    return "enum" in schema or bool(schema.get("oneOf")) and all("const" in part for part in schema["oneOf"])


def union(parts: Iterable[str]) -> str:
    found = dict.fromkeys(parts)
    found = [part for part in found if part != "None"] + [part for part in found if part == "None"]
    return " | ".join(found)


def annotation(schema: Schema) -> str:
    """The type of a schema's values, as Python writes it."""
    if "$ref" in schema:
        return name_of(schema["$ref"])
    if "const" in schema:
        return f"Literal[{json.dumps(schema['const'])}]"
    if is_names(schema):
        words = schema.get("enum") or [part["const"] for part in schema["oneOf"]]
        return f"Literal[{', '.join(json.dumps(word) for word in words)}]"
    for key in ("oneOf", "anyOf"):
        if key in schema:
            return union(annotation(part) for part in schema[key])
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        return union(annotation({**schema, "type": one}) for one in cast("list[str]", kind))
    if kind == "array":
        if "prefixItems" in schema:
            parts: list[Schema] = schema["prefixItems"]
            return f"tuple[{', '.join(annotation(one) for one in parts)}]"
        return f"tuple[{annotation(schema.get('items', {}))}, ...]"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict) and "properties" not in schema:
        values = annotation(schema["additionalProperties"])
        return f"Mapping[str, {values}]" if values != "dict[str, Any]" else "dict[str, Any]"
    return PLAIN[kind]


def description(schema: Schema) -> str:
    own = schema.get("description")
    inner = next((part["description"] for part in schema.get("oneOf", []) if "description" in part), "")
    return LINK.sub(r"\1", " ".join((own or inner).split()))


def docstring(text: str, indent: str) -> list[str]:
    if not text:
        return []
    text = text.replace("\\", "\\\\")
    if text.endswith('"'):
        text = f'{text[:-1]}\\"'
    lines = textwrap.wrap(text, 110, initial_indent=indent + '"""', subsequent_indent=indent)
    return [*lines[:-1], lines[-1] + '"""']


@dataclass
class Types:
    """The types of named schemas.

    Attributes:
        schemas: the schemas that references name.
        fills_in: a field that may be absent has the value that it stands for then. Otherwise the reader of the JSON
            fills it in, and it is None.
        needs: of each class, those that its fields' defaults are made of.
        parts: of each part of a tagged union, the union.
    """

    schemas: dict[str, Schema]
    fills_in: bool
    needs: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    parts: dict[str, str] = field(default_factory=dict[str, str])

    def resolved(self, schema: Schema) -> Schema:
        return self.schemas[schema["$ref"].rsplit("/", 1)[-1]] if "$ref" in schema else schema

    def default_of(self, schema: Schema, required: bool) -> str | None:
        """The default of a field, as Python has it; none if it has to be given."""
        if "const" in schema:
            return repr(schema["const"])
        if required:
            return None
        default = schema.get("default")
        kind = schema.get("type")
        if kind == "array":
            return "()"
        if kind == "object":
            return "None"
        if self.fills_in:
            return self._value_of(schema)
        # Defaults of messages and alternatives are the server's to fill in.
        if "$ref" in schema or isinstance(default, (dict, list)):
            return "None"
        if kind == "boolean" and default is None:
            return "False"
        return repr(default)

    def _value_of(self, schema: Schema) -> str:
        """What stands for a field that is absent: its default, or the empty value of its type."""
        default: Any = schema.get("default")
        of = self.resolved(schema)
        if default is None:
            if of.get("type") == "array":
                return "()"
            if "$ref" in schema and of.get("type") == "object" and not of.get("required"):
                return f"{name_of(schema['$ref'])}()"
            return {"boolean": "False", "integer": "0", "number": "0.0"}.get(str(of.get("type")), "None")
        if isinstance(default, dict):
            # Of a tagged union; more than the kind was never a default.
            [(key, kind)] = cast(Schema, default).items()
            assert is_tagged(of) and key == "kind", schema
            return f"{camel(kind)}{name_of(schema['$ref'])}()"
        return repr(default)

    def properties(self, schema: Schema) -> tuple[dict[str, Schema], list[str]]:
        """The fields of an object, and those that are required: with those of its parts and of what it refers to."""
        found: dict[str, Schema] = {}
        required: list[str] = []
        if "$ref" in schema:
            found, required = self.properties(self.resolved(schema))
        found = {**schema.get("properties", {}), **found}
        required = [*schema.get("required", []), *required]
        # Alternatives without a kind: one of them is there.
        for part in schema.get("oneOf", []):
            found.update(part.get("properties", {}))
        return found, required

    def dataclass(self, name: str, schema: Schema, text: str) -> list[str]:
        lines = [
            "@dataclass(frozen=True, kw_only=True, slots=True)",
            f"class {name}(Message):",
            *docstring(text, "    "),
        ]
        found, required = self.properties(schema)
        names = [*required, *(own for own in found if own not in required)] if self.fills_in else list(found)
        for own in names:
            inner = found[own]
            default, of = self.default_of(inner, own in required), annotation(inner)
            if default == "None" and not of.endswith("None"):
                of += " | None"
            if default is not None and default.endswith("()") and default != "()":
                self.needs.setdefault(name, set()).add(default[:-2])
            lines.append(f"    {field_name(own)}: {of}" + ("" if default is None else f" = {default}"))
            lines.extend(docstring(description(inner), "    "))
        return lines

    def alias(self, name: str, schema: Schema) -> list[str]:
        of = annotation(schema)
        if "|" in of and not is_names(schema):
            of = f"Union[{of.replace(' | ', ', ')}]"
        text = description(schema)
        if not is_names(schema) or "oneOf" not in schema:
            return [f"{name} = {of}", *docstring(text, "")]
        words = [(part["const"], description(part)) for part in schema["oneOf"]]
        listed = [
            line for word, says in words for line in textwrap.wrap(f"- `{word}`: {says}", 110, subsequent_indent="  ")
        ]
        return [f"{name} = {of}", *docstring(text, "")[:-1], *_open(text), "", *listed, '"""']

    def tagged(self, name: str, schema: Schema) -> list[list[str]]:
        """The messages of a tagged union, and the union."""
        parts = [(f"{camel(kind_of(part) or '')}{name}", part) for part in schema["oneOf"]]
        blocks = [self.dataclass(own, part, description(part)) for own, part in parts]
        blocks.append([f"{name} = Union[{', '.join(own for own, _ in parts)}]", *docstring(description(schema), "")])
        self.parts.update((own, name) for own, _ in parts)
        return blocks


def _open(text: str) -> list[str]:
    """The last line of a docstring that goes on."""
    return [docstring(text, "")[-1].removesuffix('"""')]


def module(head: str, aliases: Iterable[list[str]], classes: Iterable[list[str]]) -> str:
    blocks = [
        head.rstrip(),
        *("\n".join(block) for block in aliases),
        *("\n\n" + "\n".join(block) for block in classes),
    ]
    return "\n\n".join(block.rstrip() for block in blocks).replace("\n\n\n\n", "\n\n\n") + "\n"
