"""Validation of a report against the dataclasses of gpuworker.accept.report, the one declaration of its form.

The types of the fields are checked here and not by jsonschema, which the worker image does not have to contain. Beyond
the types: names of verdicts, the node, the start time, and curves, since the formats rely on them.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import functools
import json
import types
import typing
from collections.abc import Callable

from gpuworker.accept.report import (
    FAIL,
    INCOMPLETE,
    LARGEST_NUMBER,
    NODE,
    PASS,
    SCHEMA_VERSION,
    SKIP,
    WARN,
    WORLD,
    Report,
)

VERDICTS = (FAIL, INCOMPLETE, WARN, PASS, SKIP)
DIRECTIONS = ("higher", "lower", "")
NOT_A_REPORT = "JSON that is not a report"
OWN_FIELDS = ("run_id", "started")  # with these it is a report that has lost its checks
SUPPORTED_VERSIONS = (2, SCHEMA_VERSION)
# Fields that a report of version 2 lacks, with the value that they get
ADDED_IN_3 = {"scope": NODE, "world": None, "better": "", "judged": False, "problems": []}

DEEPEST = 32  # levels of nested lists and objects; a report has about ten
LONGEST_NAME = 253  # characters, as Kubernetes allows for the name of a node

Problem = str  # "" or the path of a value with what is wrong with it


def validated(report: object) -> dict:
    """The report, with the fields that its version lacks. Raises ValueError with the path of a wrong value."""
    if not isinstance(report, dict) or not ("checks" in report or set(OWN_FIELDS) <= set(report)):
        raise ValueError(NOT_A_REPORT)
    version = report.get("schema_version")
    if version not in SUPPORTED_VERSIONS or isinstance(version, bool):
        raise ValueError(f"schema_version {version!r} is not supported; supported: 2, {SCHEMA_VERSION}")
    if _is_deeper(report, DEEPEST):
        raise ValueError(f"damaged report: more than {DEEPEST} levels of nested lists and objects")
    json.dumps(report, ensure_ascii=False).encode()  # raises on half a character (\ud800), which no file can hold
    if version == 2:
        _add_later_fields(report)
    if problem := _checker(Report)(report) or _beyond_types(report):
        raise ValueError(f"damaged report: {problem.removeprefix('.')}")
    return report


def _add_later_fields(report: dict) -> None:
    """Give a report of version 2 the fields of version 3."""
    checks = _objects(report.get("checks"))
    numbers = [number for check in checks for number in _objects(check.get("measurements"))]
    for fields, objects in (
        (("scope", "world"), [report]),
        (("problems",), checks),
        (("better", "judged"), numbers),
    ):
        for each in objects:
            for name in fields:
                each.setdefault(name, copy.copy(ADDED_IN_3[name]))


def _objects(value: object) -> list[dict]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


@functools.cache
def _checker(kind: object) -> Callable[[object], Problem]:
    """A function that compares a JSON value with an annotated type."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass_checker(kind)
    if origin in (types.UnionType, typing.Union):
        check = _checker(inner[0])
        return lambda value: "" if value is None else check(value)
    if origin is typing.Literal:
        return lambda value: "" if value in inner else _wrong(value, f"one of {', '.join(map(str, inner))}")
    if origin in (list, dict):
        check, (test, _) = _checker(inner[-1]), SCALARS.get(inner[-1], (None, ""))
        if origin is list and test:  # thousands of samples
            return lambda value: "" if _all(test, value) else _check_items(value, list, check)
        return lambda value: _check_items(value, origin, check)
    test, expected = SCALARS[kind]
    return lambda value: "" if test(value) else _wrong(value, expected)


def _dataclass_checker(kind: type) -> Callable[[object], Problem]:
    hints = typing.get_type_hints(kind)
    checks = [(field.name, _checker(hints[field.name])) for field in dataclasses.fields(kind)]

    def check(value: object) -> Problem:
        if not isinstance(value, dict):
            return _wrong(value, "an object")
        for name, check_field in checks:
            if name not in value:
                return f".{name} is missing"
            if problem := check_field(value[name]):
                return f".{name}{problem}"
        return ""

    return check


def _is_deeper(value: object, levels: int) -> bool:
    """Level by level and not recursive: a hostile report may be nested as deep as it is long."""
    level = [value]
    for _ in range(levels):
        level = [item for each in level if isinstance(each, dict | list)
                 for item in (each.values() if isinstance(each, dict) else each)]  # fmt: skip
    return any(isinstance(each, dict | list) for each in level)


def _all(test: Callable[[object], bool], value: object) -> bool:
    return isinstance(value, list) and all(map(test, value))


def _check_items(value: object, origin: type, check: Callable[[object], Problem]) -> Problem:
    if not isinstance(value, origin):
        return _wrong(value, "a list" if origin is list else "an object")
    for key, item in value.items() if origin is dict else enumerate(value):
        if problem := check(item):
            return f"[{key!r}]{problem}"
    return ""


def _wrong(value: object, expected: str) -> Problem:
    return f" is {str(value)[:80]!r}, expected {expected}"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    """A number, or null for a value that was not finite."""
    if value is None:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST_NUMBER


SCALARS: dict[object, tuple[Callable[[object], bool], str]] = {
    str: (lambda value: isinstance(value, str), "text"),
    bool: (lambda value: isinstance(value, bool), "true or false"),
    int: (_is_count, "a whole number"),
    float: (_is_number, "a number below 1e100"),
    object: (lambda value: True, "anything"),
}


def _beyond_types(report: dict) -> Problem:
    named = [("verdict", report.get("verdict"), VERDICTS), ("scope", report["scope"], (NODE, WORLD))]
    for index, check in enumerate(report["checks"]):
        named.append((f"checks[{index}].verdict", check["verdict"], VERDICTS))
        for number, problem in enumerate(check["problems"]):
            named.append((f"checks[{index}].problems[{number}].verdict", problem["verdict"], (FAIL, INCOMPLETE, WARN)))
        for number, found in enumerate(check["measurements"]):
            named.append((f"checks[{index}].measurements[{number}].better", found["better"], DIRECTIONS))
        curves = check["facts"].get("curves", {})
        for name, curve in curves.items() if isinstance(curves, dict) else [("", None)]:
            if not _is_curve(curve):
                return f"checks[{index}].facts.curves[{name!r}]" + _wrong(curve, "unit and points [bytes, value]")
    names = [("node", report["node"]), ("pod", report["pod"]), ("run_id", report["run_id"])]
    names += [(f"checks[{index}].name", check["name"]) for index, check in enumerate(report["checks"])]
    for index, check in enumerate(report["checks"]):
        for number, found in enumerate(check["measurements"]):
            names += [(f"checks[{index}].measurements[{number}].{key}", found[key]) for key in ("name", "device")]
        names += [(f"checks[{index}].hashes", name) for name in check["hashes"]]
    for path, name in names:
        if len(name) > LONGEST_NAME:
            return f"{path} has {len(name)} characters, at most {LONGEST_NAME} are allowed"
    for path, value, allowed in named:
        if value not in allowed:
            return path + _wrong(value, f"one of {', '.join(map(repr, allowed))}")
    if not isinstance(report.get("reason"), str):
        return "reason" + _wrong(report.get("reason"), "text")
    if not report["node"]:
        return "node is empty"
    if (report["scope"] == WORLD) != bool(report["world"] and report["world"]["nodes"]):
        return "world" + _wrong(report["world"], f"the nodes of a report of scope {WORLD}, else null")
    try:
        aware = datetime.datetime.fromisoformat(report["started"]).tzinfo is not None
    except ValueError:
        aware = False
    return "" if aware else "started" + _wrong(report["started"], "an ISO 8601 time with a time zone")


def _is_curve(curve: object) -> bool:
    points = curve.get("points") if isinstance(curve, dict) and isinstance(curve.get("unit"), str) else None
    return isinstance(points, list) and len(points) > 0 and all(map(_is_point, points))


def _is_point(point: object) -> bool:
    pair = isinstance(point, list) and len(point) == 2 and None not in point
    return pair and all(map(_is_number, point)) and point[0] > 0 and point[1] >= 0
