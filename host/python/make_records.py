"""Makes tilewright/records.py, the types of records and all that they consist of, from the published schemas.

python make_records.py ../plan/*record.schema.json > tilewright/records.py
"""

from __future__ import annotations

import json
import sys
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, cast

from schema_types import Schema, Types, camel, description, is_tagged, module, name_of

HEAD = '''"""The types of decisions and their records, with the fields and names of their JSON. Sizes are bytes, times
milliseconds.

Those of decodes and encodes have the plain names, as `Request`; those of samples and of text encoders begin with
`Denoise` and `Text`. Made by make_records.py from the schemas of records: change the Rust types, not this file.
"""

# ruff: noqa
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Union

from ._json import Message
'''

SUFFIX = ".schema.json"


def references(schema: Any) -> set[str]:
    """The names that a schema refers to."""
    if isinstance(schema, list):
        return set[str]().union(*map(references, cast("list[Any]", schema)))
    if not isinstance(schema, dict):
        return set()
    found = cast(Schema, schema)
    own = {name_of(found["$ref"])} if "$ref" in found else set[str]()
    return own.union(*map(references, found.values()))


def renamed(schema: Any, names: dict[str, str]) -> Any:
    """A schema whose references have other names."""
    if isinstance(schema, list):
        return [renamed(one, names) for one in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    found = {key: renamed(value, names) for key, value in cast(Schema, schema).items()}
    if "$ref" in found:
        name = name_of(found["$ref"])
        found["$ref"] = f"#/$defs/{names.get(name, name)}"
    return found


def own_names(name: str, documents: dict[str, Schema]) -> set[str]:
    """The schemas of a document that another one has under the same name, and not alike."""
    own = documents[name]["$defs"]
    others = [other["$defs"] for key, other in documents.items() if key != name]
    found = {key for key, schema in own.items() if any(key in other and other[key] != schema for other in others)}
    # What refers to such a schema is another one as well, if others have it.
    while True:
        more = {
            key
            for key, schema in own.items()
            if key not in found and any(key in other for other in others) and references(schema) & found
        }
        if not more:
            return found
        found |= more


def gather(documents: dict[str, Schema]) -> dict[str, Schema]:
    """All schemas of the documents under names of their own."""
    found: dict[str, Schema] = {}
    for record, document in documents.items():
        prefix = record.removesuffix("Record")
        names = {key: f"{prefix}{key}" for key in own_names(record, documents)}
        schemas: dict[str, Schema] = document["$defs"]
        for key, schema in schemas.items():
            own = names.get(key, key)
            schema = renamed(schema, names)
            assert found.setdefault(own, schema) == schema, own
        found[record] = renamed({key: value for key, value in document.items() if key != "$defs"}, names)
    return found


def make(documents: dict[str, Schema]) -> str:
    schemas = gather(documents)
    types = Types(schemas, fills_in=True)
    aliases: list[list[str]] = []
    classes: dict[str, list[list[str]]] = {}
    for name in sorted(schemas):
        schema = schemas[name]
        if is_tagged(schema):
            classes[name] = types.tagged(name, schema)
        elif schema.get("type") == "object":
            classes[name] = [types.dataclass(name, schema, description(schema))]
        else:
            aliases.append(types.alias(name, schema))
    # Of those, one is made of another.
    aliases.sort(key=lambda lines: ("Value" in lines[0].split(" = ")[1], "Union" in lines[0]))
    assert not types.parts.keys() & classes.keys(), "two classes have the same name"
    # Defaults are values of classes further up.
    before = {name: {types.parts.get(need, need) for need in types.needs.get(name, ())} for name in classes}
    order = TopologicalSorter({name: sorted(before[name]) for name in classes}).static_order()
    return module(HEAD, aliases, [block for name in order for block in classes[name]])


if __name__ == "__main__":
    paths = [Path(path) for path in sys.argv[1:]]
    sys.stdout.write(make({camel(path.name.removesuffix(SUFFIX)): json.loads(path.read_bytes()) for path in paths}))
