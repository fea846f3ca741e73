"""Generator of jobgen's JSON Schemas from schemas/jobgroup, and of its list of GPU types from the
chart.
"""

from __future__ import annotations

import copy
import json
import re

import yaml

from hack.gen import contract_files
from hack.paths import REPO

SOURCES = REPO / "schemas/jobgroup"
ACCELERATORS = '''"""GPU types with node labels in the chart job-group, generated from its files."""

ACCELERATORS = frozenset(
    {{
{}
    }}
)
'''


NOT_NULL = ["string", "number", "boolean", "object", "array"]


def document() -> dict:
    """Return the JSON Schema of a document, which is a header or a task."""
    header, task = whole("header"), whole("task")
    dialect = header.pop("$schema")
    task.pop("$schema")
    return {
        "$schema": dialect,
        "title": "Document of a job group",
        "description": "Header or task of a job group; for editors, which use one schema for all documents of a file.",
        "definitions": header.pop("definitions") | task.pop("definitions"),
        "if": {"required": ["execution"]},
        "then": header,
        "else": task,
    }


def whole(name: str) -> dict:
    """Return a schema with its included files, and with null allowed where it counts as absent."""
    schema = source(name)
    definitions = schema.setdefault("definitions", {})
    include(schema, definitions)
    add_kubernetes(schema, definitions)
    return json.loads(json.dumps(allow_null(schema)), object_hook=with_end_of_text)


def source(name: str) -> dict:
    # Through JSON, because aliases of YAML make two fields one object.
    text = (
        (SOURCES / f"{name}.yaml")
        .read_text()
        .replace("RESERVED", contract_files.reserved_pattern())
    )
    return json.loads(json.dumps(yaml.safe_load(text)))


def include(schema: dict, definitions: dict) -> None:
    """Replace `allOf: [{$ref: NAME.yaml}]` by the file's content, and a local reference by its
    definition.
    """
    for field in list(schema.get("properties", {}).values()):
        for part in field.pop("allOf", []):
            if part["$ref"].startswith("#"):
                target = definitions[part["$ref"].rpartition("/")[2]]
            else:
                target = source(part["$ref"].removesuffix(".yaml"))
                definitions.update(target.pop("definitions", {}))
                include(target, definitions)
            for key, value in target.items():
                field.setdefault(key, value)


def add_kubernetes(schema, definitions: dict) -> None:
    """Replace `x-kubernetes: TYPE` by the type's schema; fields that are written beside it keep
    their own.
    """
    types = json.loads(
        (REPO / "schemas/charts/kubernetes.json").read_text(), object_hook=with_property_names
    )

    def visit(part) -> None:
        if isinstance(part, list):
            for item in part:
                visit(item)
        elif isinstance(part, dict):
            if "x-kubernetes" in part:
                kind = copy.deepcopy(types[part.pop("x-kubernetes")])
                fields = {**kind["properties"], **part.get("properties", {})}
                part.update({**kind, **part, "properties": fields})
            used = str(part.get("$ref", "")).removeprefix("#/definitions/")
            if used in types and used not in definitions:
                definitions[used] = types[used]
                visit(definitions[used])
            for value in list(part.values()):
                visit(value)

    visit(schema)


def with_property_names(part: dict) -> dict:
    """A pattern of keys in the form that jobgen reads, whose message names the key; Helm's would
    name another one.
    """
    for pattern, value in part.pop("patternProperties", {}).items():
        part |= {"propertyNames": {"pattern": pattern}, "additionalProperties": value}
    return part


def with_end_of_text(part: dict) -> dict:
    """A pattern in which $ matches only the end of the text for Python, too, which also accepts a
    line end after it.
    """
    if isinstance(part.get("pattern"), str):
        part["pattern"] = re.sub(r"(?<!\\)\$(?=$|\)|\|)", r"$(?!\\n)", part["pattern"])
    return part


def allow_null(schema):
    """Allow null for the optional fields of objects with x-null."""
    if isinstance(schema, list):
        return [allow_null(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {
        key: value if key == "examples" else allow_null(value) for key, value in schema.items()
    }
    if "x-null" in schema:
        required = schema.get("required", [])
        result["properties"] = {
            key: value if key in required else nullable(value)
            for key, value in result["properties"].items()
        }
    return result


def nullable(field: dict) -> dict:
    if field.get("not") == {}:
        return {**field, "not": {"type": NOT_NULL}}
    if "anyOf" in field:
        return {**field, "anyOf": [*field["anyOf"], {"type": "null"}]}
    result = dict(field)
    if "type" in field:
        kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
        result["type"] = [*kinds, "null"]
    if "enum" in field:
        result["enum"] = [*field["enum"], None]
    return result


def accelerators() -> str:
    """Return the module with the names of the GPU types."""
    table = yaml.safe_load((REPO / "charts/job-group/files/gpu-types.yaml").read_text())
    names = sorted({name for types in table.values() for name in types})
    return ACCELERATORS.format("\n".join(f'        "{name}",' for name in names))
