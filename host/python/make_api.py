"""Makes tilewright/api.py, the types of the service's interface, from its own description.

curl http://127.0.0.1:7590/openapi.json | python make_api.py > tilewright/api.py
"""

from __future__ import annotations

import json
import sys
from typing import Any

from schema_types import Types, annotation, description, docstring, field_name, module, name_of

HEAD = '''"""The types of the service's interface, with the fields and names of its JSON.

Made by make_api.py from the service's /openapi.json: change the Rust types, not this file.
"""

# ruff: noqa
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Union

from ._json import Message
'''

#: Forms and what only errors carry.
LEFT_OUT = {"Submission", "ModuleFile", "FollowEvent", "Problem"}

#: Requests, of which the package also has keyword arguments.
OPTIONS = {"JobRequest": "JobOptions", "SampleFields": "SampleOptions"}

#: Fields that the package fills in itself.
OWN_FIELDS = {"model", "latent_path", "prompt", "negative_prompt", "sample", "encode", "paths"}


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
    schemas = document["components"]["schemas"]
    types = Types(schemas, fills_in=False)
    aliases: list[list[str]] = []
    classes: list[list[str]] = []
    for key, schema in schemas.items():
        if key in LEFT_OUT:
            continue
        name = name_of(key)
        if schema.get("type") == "object":
            classes.append(types.dataclass(name, schema, description(schema)))
            if key in OPTIONS:
                classes.append(options(OPTIONS[key], schema))
        else:
            aliases.append(types.alias(name, schema))
    # Unions are of names above them.
    aliases.sort(key=lambda lines: "Union" in lines[0])
    classes.append(parameters("JobFilter", document["paths"]["/v1/jobs"]["get"]["parameters"]))
    return module(HEAD, aliases, classes)


if __name__ == "__main__":
    sys.stdout.write(make(json.load(sys.stdin)))
