"""Validator of the group's schemas: reports diagnostics, and returns the value without invalid and
ignored fields.

It reads the part of JSON Schema that schemas/jobgroup uses (its README lists it). Own code in place
of jsonschema, whose import takes 86 ms against 4 ms for this module without the standard library; a
whole run of jobgen takes 114 ms (wall time for a group of seven pods, medians of 20). A test proves
that both accept the same values.
"""

import json
import operator
import re
from collections.abc import Callable, Collection, Sized
from functools import cache
from pathlib import Path as File

from jobgen.diagnostics import ERROR, NOTE, Path, quoted

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


@cache
def read() -> dict:
    """The JSON Schema of a document: `then` is that of the header, `else` that of a task."""
    return json.loads((File(__file__).parent / "schemas" / "document.json").read_text("utf-8"))


def validate(is_header: bool, value: object, report: Report) -> object:
    """Return the value without its invalid, refused, ignored and null parts."""
    return _Validator(report).validate(read()["then" if is_header else "else"], value, ())


def check(definition: str, value: object, report: Report, path: Path) -> None:
    """Check a part of a manifest, which is at `path`."""
    _Validator(report).validate(read()["definitions"][definition], value, path)


class _Validator:
    def __init__(self, report: Report):
        self.report = report

    def validate(self, schema: dict, value: object, path: Path) -> object:
        schema = _resolved(schema)
        if "not" in schema:
            self.report("refused-field", path, f"not supported: {schema['x-note']}", ERROR, True)
            return DROP
        if "anyOf" in schema:  # no two alternatives share a type
            branches = map(_resolved, schema["anyOf"])
            branch = next((each for each in branches if _has_type(each.get("type"), value)), None)
            if branch is None:
                return self._wrong_type(schema, value, path)
            clean = self.validate(branch, value, path)
        elif "if" in schema:
            branch = "then" if _matches(schema["if"], value) else "else"
            clean = self.validate(schema[branch], value, path)
        else:
            clean = self._plain(schema, value, path)
        if clean is not DROP and schema.get("x-support") == "ignored":
            self.report("ignored-field", path, f"ignored: {schema['x-note']}", NOTE, True)
            return DROP
        return clean

    def _plain(self, schema: dict, value: object, path: Path) -> object:
        if not _has_type(schema.get("type"), value):
            return self._wrong_type(schema, value, path)
        if isinstance(value, dict):
            clean = self._object(schema, value, path)
        elif isinstance(value, list) and "items" in schema:
            items = (
                self.validate(schema["items"], each, (*path, index))
                for index, each in enumerate(value)
            )
            clean = [each for each in items if each is not DROP]
        else:
            clean = value
        expected = _violation(schema, value)
        if not expected:
            return clean
        if "x-message" in schema:
            message = schema["x-message"].format(quoted(value))
        else:
            hidden = "x-secret" in schema or isinstance(value, (dict, list))
            got = "" if hidden else f", got {quoted(value)}"
            message = f"must be {schema.get('x-expected') or expected}{got}"
        self.report(schema.get("x-code", "bad-value"), path, message, ERROR, False)
        return DROP

    def _object(self, schema: dict, value: dict, path: Path) -> dict | object:
        properties = schema.get("properties", {})
        rest = schema.get("additionalProperties", True)
        names = schema.get("propertyNames")
        at_key = _Validator(lambda *found: self.report(*found[:4], True))
        given = value
        if "x-null" in schema:
            given = {
                key: each
                for key, each in value.items()
                if each is not None or key not in properties
            }
        clean = {}
        for key, item in given.items():
            key_path = (*path, key)
            if names and at_key.validate(names, key, key_path) is DROP:
                continue
            if key not in properties and rest is False:
                message = "unknown field" + did_you_mean(key, properties, len(value))
                self.report("unknown-field", key_path, message, ERROR, True)
                continue
            kind = properties.get(key, rest)
            item = item if kind is True else self.validate(kind, item, key_path)
            if item is not DROP:
                clean[key] = item
        required = schema.get("required", ())
        for key in required:
            if key not in given:
                self.report("missing-field", path, f'must have a "{key}" field', ERROR, False)
        return clean if not path or all(key in clean for key in required) else DROP

    def _wrong_type(self, schema: dict, value: object, path: Path) -> object:
        kinds = [kind for kind in _kinds(schema) if kind != "null"]
        got = _KINDS_OF[type(value)][0]
        is_scalar = got in ("integer", "number", "boolean")
        quote = "; put it in quotes" if kinds == ["string"] and is_scalar else ""
        wanted = " or ".join(dict.fromkeys(KINDS[kind] for kind in kinds))
        self.report("wrong-type", path, f"must be {wanted}, got {KINDS[got]}{quote}", ERROR, False)
        return DROP


def _resolved(schema: dict) -> dict:
    while "$ref" in schema:
        schema = read()["definitions"][schema["$ref"].removeprefix("#/definitions/")]
    return schema


def _kinds(schema: dict) -> list[str]:
    """The types that fit; not those of a refused alternative."""
    schema = _resolved(schema)
    if "anyOf" in schema:
        return [kind for each in schema["anyOf"] if "not" not in each for kind in _kinds(each)]
    return [schema["type"]] if isinstance(schema["type"], str) else schema["type"]


def _matches(schema: dict, value: object) -> bool:
    """Whether a value fits the schema of an `if`."""
    found: list[tuple] = []
    _Validator(lambda *problem: found.append(problem)).validate(schema, value, ())
    return not found


def _violation(schema: dict, value: object) -> str | None:
    """Return what a value of the right type must be; None if the value is valid."""
    for keyword in filter(_CHECKS.get, schema):
        kind, fits, expected = _CHECKS[keyword]
        if _has_type(kind, value) and not fits(value, schema[keyword]):
            return expected.format(schema[keyword])
    return None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of JSON Schema, where $ matches only the end of the text."""
    return re.compile(re.sub(r"(?<!\\)\$(?=$|\)|\|)", r"\\Z", pattern))


def _has_type(kinds: str | list[str] | None, value: object) -> bool:
    """Return whether a value has a type. As in SkyPilot, true and false are not numbers and 2.0
    is not an integer.
    """
    own = _KINDS_OF[type(value)]
    if isinstance(kinds, list):
        return any(kind in own for kind in kinds)
    return kinds is None or kinds in own


_KINDS_OF = {
    str: ("string",),
    int: ("integer", "number"),
    float: ("number",),
    bool: ("boolean",),
    dict: ("object",),
    list: ("array",),
    type(None): ("null",),
}


def _at_least(value: Sized, limit: int) -> bool:
    return len(value) >= limit


def _at_most(value: Sized, limit: int) -> bool:
    return len(value) <= limit


# Keyword -> the types that it is about, whether a value fits its limit, and what else to say.
_CHECKS: dict[str, tuple[str | None, Callable, str]] = {
    "enum": (None, lambda value, allowed: repr(value) in map(repr, allowed), "one of {}"),
    "minimum": ("number", operator.ge, "at least {}"),
    "maximum": ("number", operator.le, "at most {}"),
    "exclusiveMinimum": ("number", operator.gt, "above {}"),
    "minLength": ("string", _at_least, "some text"),
    "maxLength": ("string", _at_most, "at most {} characters"),
    "minItems": ("array", _at_least, "a list of at least {}"),
    "maxItems": ("array", _at_most, "a list of at most {}"),
    "minProperties": ("object", _at_least, "a mapping with at least {} key"),
    "maxProperties": ("object", _at_most, "a mapping with at most {} key"),
    "pattern": ("string", lambda value, pattern: _compiled(pattern).search(value), "text like {}"),
    "uniqueItems": ("array", lambda value, _: len(set(map(repr, value))) == len(value), "a list without repetitions"),
}  # fmt: skip


def did_you_mean(name: str, known: Collection[str], count: int) -> str:
    """Return a hint with the closest valid name; "" if there are so many names that the search
    would take long.
    """
    if count * len(known) > 100_000:
        return ""
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {quoted(near[0])}?" if near else ""
