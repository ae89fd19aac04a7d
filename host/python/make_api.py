"""Makes tilewright/api.py, the types of the service's interface, from its own description.

    curl http://127.0.0.1:7590/openapi.json | python make_api.py > tilewright/api.py
"""

from __future__ import annotations

import json
import keyword
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

HEAD = '''"""The types of the service's interface, with the fields and names of its JSON.

Made by make_api.py from the service's /openapi.json: change the Rust types, not this file.
"""

# ruff: noqa
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Union

from ._json import Message
'''

PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "object": "dict[str, Any]", "null": "None"}

#: Forms and what only errors carry.
LEFT_OUT = {"Submission", "ModuleFile", "FollowEvent", "Problem"}

#: Requests, of which the package also has keyword arguments.
OPTIONS = {"JobRequest": "JobOptions", "SampleFields": "SampleOptions"}

#: Fields that the package fills in itself.
OWN_FIELDS = {"model", "latent_path", "prompt", "negative_prompt", "sample", "encode", "paths"}


def name_of(reference: str) -> str:
    name = reference.rsplit("/", 1)[-1]
    return name.removesuffix("Body").removesuffix("Name") or name


def field_name(name: str) -> str:
    return name + "_" if keyword.iskeyword(name) else name


def annotation(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return name_of(schema["$ref"])
    if "enum" in schema:
        return f"Literal[{', '.join(json.dumps(value) for value in schema['enum'])}]"
    for key in ("oneOf", "anyOf"):
        if key in schema:
            return union(annotation(part) for part in schema[key])
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        return union(annotation({**schema, "type": one}) for one in kind)
    if kind == "array":
        return f"tuple[{annotation(schema.get('items', {}))}, ...]"
    return PLAIN[kind]


def union(parts: Iterator[str]) -> str:
    found = dict.fromkeys(parts)
    found = [part for part in found if part != "None"] + [part for part in found if part == "None"]
    return " | ".join(found)


def description(schema: dict[str, Any]) -> str:
    own = schema.get("description")
    inner = next((part["description"] for part in schema.get("oneOf", []) if "description" in part), "")
    return " ".join((own or inner).split())


def docstring(text: str, indent: str) -> list[str]:
    if not text:
        return []
    text = text.replace("\\", "\\\\")
    lines = textwrap.wrap(text, 110, initial_indent=indent + '"""', subsequent_indent=indent)
    return [*lines[:-1], lines[-1] + '"""']


def default_of(schema: dict[str, Any], required: bool) -> str | None:
    if required:
        return None
    default = schema.get("default")
    kind = schema.get("type")
    if kind == "array":
        return "()"
    if kind == "object":
        return "None"
    # Defaults of messages and alternatives are the server's to fill in.
    if "$ref" in schema or isinstance(default, (dict, list)):
        return "None"
    if kind == "boolean" and default is None:
        return "False"
    return repr(default)


def dataclass(name: str, schema: dict[str, Any]) -> list[str]:
    lines = ["@dataclass(frozen=True, kw_only=True)", f"class {name}(Message):", *docstring(description(schema), "    ")]
    required = set(schema.get("required", []))
    for own, inner in schema.get("properties", {}).items():
        default, of = default_of(inner, own in required), annotation(inner)
        if default == "None" and not of.endswith("None"):
            of += " | None"
        lines.append(f"    {field_name(own)}: {of}" + ("" if default is None else f" = {default}"))
        lines.extend(docstring(description(inner), "    "))
    return lines


def options(name: str, schema: dict[str, Any]) -> list[str]:
    """Keyword arguments of the request's fields; an array is any sequence."""
    lines = [f"class {name}(TypedDict, total=False):", *docstring(f"Keyword arguments: {description(schema)}", "    ")]
    for own, inner in schema.get("properties", {}).items():
        if own not in OWN_FIELDS:
            lines.append(f"    {field_name(own)}: {annotation(inner).replace(', ...]', ', ...] | list[Any]')}")
    return lines


def parameters(name: str, all_of: list[dict[str, Any]]) -> list[str]:
    lines = [f"class {name}(TypedDict, total=False):", '    """Keyword arguments of a listing."""']
    return lines + [f"    {one['name']}: {annotation(one['schema'])}" for one in all_of]


def make(document: dict[str, Any]) -> str:
    schemas = {key: value for key, value in document["components"]["schemas"].items() if key not in LEFT_OUT}
    aliases, classes = [], []
    for key, schema in schemas.items():
        name = name_of(key)
        if schema.get("type") == "object":
            classes.append(dataclass(name, schema))
            if key in OPTIONS:
                classes.append(options(OPTIONS[key], schema))
        else:
            # Unions of names that are defined further down stand in quotes.
            of = annotation(schema)
            of = of if "Literal" in of and "|" not in of else f'Union[{of.replace(" | ", ", ")}]'
            aliases.append([f"{name} = {of}", *docstring(description(schema), "")])
    aliases.sort(key=lambda lines: "Union" in lines[0])
    classes.append(parameters("JobFilter", document["paths"]["/v1/jobs"]["get"]["parameters"]))
    blocks = [HEAD.rstrip(), *("\n".join(block) for block in aliases), *("\n\n" + "\n".join(block) for block in classes)]
    return "\n\n".join(block.rstrip() for block in blocks).replace("\n\n\n\n", "\n\n\n") + "\n"


if __name__ == "__main__":
    sys.stdout.write(make(json.load(sys.stdin)))
