"""Validator of the group's schemas: reports diagnostics, and returns the value without invalid and ignored fields.

It reads the part of JSON Schema that schemas/jobgroup uses (its README lists it). Own code in place of jsonschema,
whose import takes 86 ms against 4 ms for this module without the standard library; a whole run of jobgen takes 114 ms
(wall time for tests/bench/rl.yaml, medians of 20). A test proves that both accept the same values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path as File

from jobgen.diagnostics import ERROR, NOTE, REFUSAL, Path, quoted

KINDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true/false",
    "object": "a mapping",
    "array": "a list",
    "null": "nothing",
}
DROP = object()  # replaces a value that is invalid, refused or ignored

# code, path, message, severity, whether it is about the key rather than the value
Report = Callable[[str, Path, str, str, bool], None]


def read(name: str) -> dict:
    """Return the JSON Schema of "header", "task", "volume" or "document", which is a header or a task."""
    if name != "document":
        return json.loads((File(__file__).parent / "schemas" / f"{name}.json").read_text("utf-8"))
    header, task = read("header"), read("task")
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


@cache
def load(name: str) -> SchemaValidator:
    return SchemaValidator(read(name))


class SchemaValidator:
    def __init__(self, root: dict):
        self.root = root
        self.patterns: dict[str, re.Pattern[str]] = {}

    def validate(self, value: object, report: Report) -> object:
        """Return the value without its invalid, refused, ignored and null parts."""
        return self._validate(self.root, value, (), report)

    def _resolve(self, schema: dict) -> dict:
        while "$ref" in schema:
            schema = self.root["definitions"][schema["$ref"].removeprefix("#/definitions/")]
        return schema

    def _validate(self, schema: dict, value: object, path: Path, report: Report) -> object:
        if "$ref" in schema:
            schema = self._resolve(schema)
        if "x-support" in schema and schema["x-support"] == "refused" and "x-refuse-values" not in schema:
            report("refused-field", path, f"not supported: {schema['x-note']}", _severity(schema), True)
            return DROP
        if "anyOf" in schema:
            branch = self._branch(schema, value)
            if branch is None:
                return self._wrong_type(schema, value, path, report)
            clean = self._validate(branch, value, path, report)
        elif "if" in schema:
            branch = schema["then" if self._matches(schema["if"], value) else "else"]
            clean = self._validate(branch, value, path, report)
        else:
            clean = self._validate_plain(schema, value, path, report)
        if clean is not DROP and "x-note" in schema:
            if schema.get("x-support") == "ignored":
                report("ignored-field", path, f"ignored: {schema['x-note']}", NOTE, True)
                return DROP
            if "x-note-always" in schema:
                report("honoured-differently", path, schema["x-note"], NOTE, True)
        return clean

    def _branch(self, schema: dict, value: object) -> dict | None:
        """Return the alternative for values of this type; no two alternatives share a type."""
        for branch in schema["anyOf"]:
            branch = self._resolve(branch)
            if _has_type(branch.get("type"), value):
                return branch
        return None

    def _validate_plain(self, schema: dict, value: object, path: Path, report: Report) -> object:
        if "type" in schema and not _has_type(schema["type"], value):
            return self._wrong_type(schema, value, path, report)
        if isinstance(value, dict):
            clean = self._object(schema, value, path, report)
        elif isinstance(value, list):
            clean = self._array(schema, value, path, report)
        else:
            clean = value
        violation = self._violation(schema, value)
        if not violation:
            return clean
        if "x-refuse-values" in schema:
            reason = schema.get("x-note-refused") or schema["x-note"]
            report("refused-field", path, f"not supported: {reason}", _severity(schema), False)
        elif "x-message" in schema:
            report(schema.get("x-code", "bad-value"), path, schema["x-message"].format(quoted(value)), ERROR, False)
        else:
            got = "" if "x-secret" in schema or isinstance(value, (dict, list)) else f", got {quoted(value)}"
            report("bad-value", path, f"must be {schema.get('x-expected') or violation}{got}", ERROR, False)
        return DROP

    def _violation(self, schema: dict, value: object) -> str | None:
        """Return what a value of the right type must be; None if the value is valid."""
        for keyword, check in _CHECKS.items():
            if keyword in schema and not check(schema[keyword], value):
                return _EXPECTED[keyword].format(schema[keyword])
        if "pattern" in schema and isinstance(value, str) and not self._pattern(schema["pattern"]).search(value):
            return f"text like {schema['pattern']}"
        return None

    def _pattern(self, pattern: str) -> re.Pattern[str]:
        """Compile a pattern of JSON Schema, where $ matches only the end of the text."""
        found = self.patterns.get(pattern)
        if found is None:
            found = self.patterns[pattern] = re.compile(re.sub(r"(?<!\\)\$(?=$|\)|\|)", r"\\Z", pattern))
        return found

    def _object(self, schema: dict, value: dict, path: Path, report: Report) -> dict | object:
        properties = schema.get("properties", {})
        rest = schema.get("additionalProperties", True)
        names = schema.get("propertyNames")
        absent_null = "x-null" in schema
        clean = {}
        for key, item in value.items():
            key_path = (*path, key)
            if item is None and absent_null and key in properties:
                continue
            if names is not None and self._validate(names, key, key_path, _report_at_key(report)) is DROP:
                continue
            if key in properties:
                item = self._validate(properties[key], item, key_path, report)
            elif rest is False:
                message = "unknown field" + did_you_mean(key, properties, len(value))
                report("unknown-field", key_path, message, ERROR, True)
                continue
            elif rest is not True:
                item = self._validate(rest, item, key_path, report)
            if item is not DROP:
                clean[key] = item
        for key in schema.get("required", ()):
            if key not in value or (value[key] is None and absent_null):
                report("missing-field", path, f'must have a "{key}" field', ERROR, False)
        complete = all(key in clean for key in schema.get("required", ()))
        return clean if complete or not path else DROP

    def _array(self, schema: dict, value: list, path: Path, report: Report) -> list:
        items = schema.get("items")
        if items is None:
            return value
        validated = [self._validate(items, item, (*path, index), report) for index, item in enumerate(value)]
        if "x-preserve-index" in schema:  # keep each item's index in the file
            return [None if item is DROP else item for item in validated]
        return [item for item in validated if item is not DROP]

    def _wrong_type(self, schema: dict, value: object, path: Path, report: Report) -> object:
        kinds = [kind for kind in self._kinds(schema) if kind != "null"]
        got = next(kind for kind in KINDS if _has_type(kind, value))
        quote = "; put it in quotes" if kinds == ["string"] and got in ("integer", "number", "boolean") else ""
        wanted = " or ".join(dict.fromkeys(KINDS[kind] for kind in kinds))
        report("wrong-type", path, f"must be {wanted}, got {KINDS[got]}{quote}", ERROR, False)
        return DROP

    def _kinds(self, schema: dict) -> list[str]:
        schema = self._resolve(schema)
        if "anyOf" in schema:
            usable = [branch for branch in schema["anyOf"] if branch.get("x-support") != "refused"]
            return [kind for branch in usable for kind in self._kinds(branch)]
        return [schema["type"]] if isinstance(schema["type"], str) else schema["type"]

    def _matches(self, schema: dict, value: object) -> bool:
        """Return whether a value fits the schema of an `if`."""
        schema = self._resolve(schema)
        if "anyOf" in schema:
            return any(self._matches(branch, value) for branch in schema["anyOf"])
        if "not" in schema and self._matches(schema["not"], value):
            return False
        if "type" in schema and not _has_type(schema["type"], value):
            return False
        if "pattern" in schema and isinstance(value, str) and not self._pattern(schema["pattern"]).search(value):
            return False
        if isinstance(value, dict):
            if any(key not in value for key in schema.get("required", ())):
                return False
            parts = schema.get("properties", {})
            return all(self._matches(part, value[key]) for key, part in parts.items() if key in value)
        return True


def _severity(schema: dict) -> str:
    """Return the severity of a refused field: an error, which --lenient can turn into a warning if not required."""
    return ERROR if "x-required-support" in schema else REFUSAL


def _has_type(kind: str | list[str] | None, value: object) -> bool:
    """Return whether a value has the type. As in SkyPilot, true and false are not numbers and 2.0 is not an integer."""
    if isinstance(kind, list):
        return any(_has_type(each, value) for each in kind)
    if kind == "string":
        return isinstance(value, str)
    if kind == "object":
        return isinstance(value, dict)
    if kind == "array":
        return isinstance(value, list)
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if kind == "integer":
        return isinstance(value, int)
    return kind is None or isinstance(value, (int, float))


_CHECKS: dict[str, Callable] = {
    "enum": lambda allowed, value: any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in allowed
    ),
    "minimum": lambda limit, value: not isinstance(value, (int, float)) or value >= limit,
    "maximum": lambda limit, value: not isinstance(value, (int, float)) or value <= limit,
    "exclusiveMinimum": lambda limit, value: not isinstance(value, (int, float)) or value > limit,
    "minLength": lambda limit, value: value is None or len(value) >= limit,
    "minItems": lambda limit, value: not isinstance(value, list) or len(value) >= limit,
    "maxItems": lambda limit, value: not isinstance(value, list) or len(value) <= limit,
    "minProperties": lambda limit, value: not isinstance(value, dict) or len(value) >= limit,
    "maxProperties": lambda limit, value: not isinstance(value, dict) or len(value) <= limit,
    "uniqueItems": lambda _, value: not isinstance(value, list) or len({repr(item) for item in value}) == len(value),
}
_EXPECTED = {
    "enum": "one of {}",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "above {}",
    "minLength": "some text",
    "minItems": "a list of at least {}",
    "maxItems": "a list of at most {}",
    "minProperties": "a mapping with at least {} key",
    "maxProperties": "a mapping with at most {} key",
    "uniqueItems": "a list without repetitions",
}


def _report_at_key(report: Report) -> Report:
    return lambda code, path, message, severity, _: report(code, path, message, severity, True)


def did_you_mean(name: str, known: Collection[str], count: int) -> str:
    """Return a hint with the closest valid name; "" if there are so many names that the search would take long."""
    if count * len(known) > 100_000:
        return ""
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {quoted(near[0])}?" if near else ""
