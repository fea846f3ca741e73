"""Schemas of a group: what is wrong with a value, and which part of it is valid.

jsonschema checks the values. README.md of schemas/jobgroup explains the words that start with x-.
"""

import functools
import json
import operator
from collections.abc import Callable, Collection, Iterator
from pathlib import Path as File

from jsonschema import Draft4Validator, Draft7Validator, ValidationError
from jsonschema.validators import extend

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
LIMITS = {
    "enum": "one of",
    "pattern": "text like",
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "above",
}
OF_KEYS = ("not", "x-support", "additionalProperties")

# code, path, message, severity, whether it is about the key rather than the value
Report = Callable[[str, Path, str, str, bool], None]


@functools.cache
def read() -> dict:
    """The JSON Schema of a document: `then` is that of the header, `else` that of a task."""
    return json.loads((File(__file__).parent / "schemas" / "document.json").read_text("utf-8"))


def validate(schema: dict, value: object, report: Report, start: Path = ()) -> object:
    """Return the value without its invalid, refused, ignored and null parts. `schema` is a part of
    the JSON Schema, and `start` the place of the value in its document.
    """
    validator = _Validator(read()).evolve(schema=schema)
    removed = set()
    for error in validator.iter_errors(value):
        is_name = "propertyNames" in error.schema_path
        path = (*error.path, error.instance) if is_name else tuple(error.path)
        removed.add(path)
        is_note = error.validator == "x-support"
        if is_note and error.instance is None:  # counts as absent
            continue
        is_key = is_name or error.validator in OF_KEYS
        code, message = _described(error)
        report(code, (*start, *path), message, NOTE if is_note else ERROR, is_key)
    value = json.loads(json.dumps(value))  # without parts that are one object at two places
    while removed - {()}:
        for path in sorted(removed - {()}, reverse=True):  # a later item of a list first
            functools.reduce(operator.getitem, path[:-1], value).pop(path[-1])
        # What must have a part that is gone is invalid, too.
        removed = {tuple(error.path) for error in validator.iter_errors(value)}
    return value


def _described(error: ValidationError) -> tuple[str, str]:
    """Code and message."""
    keyword, schema, value = error.validator, error.schema, error.instance
    if keyword == "x-support":
        return "ignored-field", f"ignored: {schema['x-note']}"
    if keyword == "not":
        return "refused-field", f"not supported: {schema['x-note']}"
    if keyword == "required":
        return "missing-field", error.message
    if keyword == "additionalProperties":
        return "unknown-field", error.message
    if keyword == "type":
        kinds = [kind for kind in _kinds(error) if kind != "null"]
        wanted = " or ".join(dict.fromkeys(KINDS[kind] for kind in kinds))
        got = next(KINDS[kind] for kind in KINDS if TYPES.is_type(value, kind))
        is_number = isinstance(value, (int, float))
        quote = "; put it in quotes" if kinds == ["string"] and is_number else ""
        return "wrong-type", f"must be {wanted}, got {got}{quote}"
    code = schema.get("x-code", "bad-value")
    if "x-message" in schema:
        return code, schema["x-message"].format(quoted(value))
    limit = f"{LIMITS.get(keyword, keyword)} {error.validator_value}"
    got = "" if "x-secret" in schema else f", got {quoted(value)}"
    return code, f"must be {schema.get('x-expected', limit)}{got}"


def _kinds(error: ValidationError) -> list[str]:
    kinds = error.validator_value
    return [kinds] if isinstance(kinds, str) else kinds


# What others call fields that a group file does not have.
ELSEWHERE = {
    "dependson": "set tasks.TASK.dependsOn in values of the chart, behind those of jobgen",
    "readinessprobe": "write it in config.kubernetes.pod_config, in containers[0]",
}


def _any_of(validator, branches: list, value: object, _) -> Iterator[ValidationError]:
    """The errors of the alternative whose type fits: no two share a type."""
    kinds = []
    for branch in branches:
        errors = list(validator.descend(value, branch))
        wrong = [each for each in errors if each.validator == "type" and not each.path]
        if not wrong:
            yield from errors
            return
        kinds += _kinds(wrong[0])
    yield ValidationError("", validator="type", validator_value=kinds)


def _others(validator, schema, value: object, whole: dict) -> Iterator[ValidationError]:
    """The fields that `properties` does not name; each unknown one is an error of its own."""
    known = whole.get("properties", {})
    for key in [key for key in value if key not in known] if isinstance(value, dict) else ():
        if schema is False:
            place = ELSEWHERE.get(str(key).replace("_", "").lower())
            hint = f"; {place}" if place else did_you_mean(key, known, len(value))
            message = "unknown field" + hint
            yield ValidationError(message, path=[key])
        else:
            yield from validator.descend(value[key], schema, path=key)


def _ignored(_, support: str, value: object, __) -> Iterator[ValidationError]:
    if support == "ignored" or value is None:
        yield ValidationError("")


# As in SkyPilot, true and false are not numbers and 2.0 is not an integer.
TYPES = Draft4Validator.TYPE_CHECKER
_Validator = extend(
    Draft7Validator,
    {"anyOf": _any_of, "additionalProperties": _others, "x-support": _ignored},
    type_checker=TYPES,
)


def did_you_mean(name: str, known: Collection[str], count: int) -> str:
    """Return a hint with the closest valid name; "" if there are so many names that the search
    would take long.
    """
    if count * len(known) > 100_000:
        return ""
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {quoted(near[0])}?" if near else ""
