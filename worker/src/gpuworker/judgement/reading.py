"""Reader of a report: JSON to the types of report.py, once, at the door. Behind it everything has
the declared type.

The dataclasses are the one declaration of the form. What programs rely on beyond the types is in
BEYOND.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import math
import sys
import types
import typing
from collections.abc import Callable

from gpuworker.judgement.kinds import KINDS
from gpuworker.judgement.report import (
    FAIL,
    INCOMPLETE,
    LARGEST_NUMBER,
    NODE,
    SCHEMA_VERSION,
    WARN,
    WORLD,
    Evidence,
    Measurement,
    Problem,
    Report,
)

NOT_A_REPORT = "JSON that is not a report"
OWN_FIELDS = ("run_id", "started")  # with these it is a report that has lost its checks
DEEPEST = 32  # levels of nested lists and objects; a report has about ten
MOST_GPUS, MOST_RANKS = 1024, 1 << 20  # of a node, of a world
LONGEST_NAME = 253  # characters, as Kubernetes allows for the name of a node


class WrongError(ValueError):
    """A value that is not of the declared type; the path to it is added on the way out."""

    def __init__(self, value: object, expected: str = "") -> None:
        super().__init__(
            f" is {str(value)[:80]!r}, expected {expected}" if expected else f" {value}"
        )
        self.path = ""

    def __str__(self) -> str:
        return f"damaged report: {self.path.removeprefix('.')}{self.args[0]}"


def report_of(found: object) -> Report:
    """The report in a JSON value. Raises ValueError with the path of a wrong value."""
    own = isinstance(found, dict) and ("checks" in found or set(OWN_FIELDS) <= set(found))
    if not own:
        raise ValueError(NOT_A_REPORT)
    version = found.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        words = f"schema_version {version!r:.80} is of another release"
        raise ValueError(f"{words}; this one reads {SCHEMA_VERSION}")
    if _is_deeper(found, DEEPEST):
        raise ValueError(f"damaged report: more than {DEEPEST} levels of nested lists and objects")
    json.dumps(found, ensure_ascii=False).encode()  # raises on half a character (\ud800)
    return _reader(Report)(found)


def _is_deeper(value: object, levels: int) -> bool:
    """Level by level and not recursive: a hostile report may be nested as deep as it is long."""
    level = [value]
    for _ in range(levels):
        level = [item for each in level if isinstance(each, dict | list)
                 for item in (each.values() if isinstance(each, dict) else each)]  # fmt: skip
    return any(isinstance(each, dict | list) for each in level)


@functools.cache
def _reader(kind: object) -> Callable[[object], object]:
    """A function that makes a value of an annotated type from a JSON value."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return functools.partial(_object, kind, _fields(kind))
    if origin in (types.UnionType, typing.Union):
        read = _reader(inner[0])
        return lambda value: None if value is None else read(value)
    if origin is tuple and inner[-1] is not ...:
        return functools.partial(_pair, [_reader(each) for each in inner])
    if origin in (list, tuple):
        return functools.partial(_list, origin, _reader(inner[0]))
    if origin is dict:
        return functools.partial(_map, _reader(inner[1]))
    return SCALARS[kind]


def _fields(kind: type) -> list[tuple[str, Callable]]:
    hints = typing.get_type_hints(kind)
    return [(field.name, _reader(hints[field.name])) for field in dataclasses.fields(kind)]


def _object(kind: type, fields: list[tuple[str, Callable]], value: object) -> object:
    if not isinstance(value, dict):
        raise WrongError(value, "an object")
    values = {}
    for name, read in fields:
        if name not in value:
            raise at(f".{name}", WrongError("is missing"))
        try:
            values[name] = read(value[name])
        except WrongError as error:
            raise at(f".{name}", error) from None
    made = kind(**values)
    if kind in BEYOND:
        BEYOND[kind](made)
    return made


def _pair(readers: list[Callable], value: object) -> tuple:
    if not isinstance(value, list) or len(value) != len(readers):
        raise WrongError(value, f"a list of {len(readers)}")
    return tuple(read(each) for read, each in zip(readers, value, strict=True))


def _list(origin: type, read: Callable, value: object) -> list | tuple:
    if not isinstance(value, list):
        raise WrongError(value, "a list")
    return origin(_items(read, enumerate(value)))


def _map(read: Callable, value: object) -> dict:
    if not isinstance(value, dict):
        raise WrongError(value, "an object")
    return dict(zip(value, _items(read, value.items()), strict=True))


def _items(read: Callable, pairs: typing.Iterable[tuple[object, object]]) -> list:
    found = []
    for key, value in pairs:
        try:
            found.append(read(value))
        except WrongError as error:
            raise at(f"[{key!r:.80}]", error) from None
    return found


def at(place: str, error: WrongError) -> WrongError:
    error.path = place + error.path
    return error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise WrongError(value, "text")
    return sys.intern(value)  # thousands of reports have the same words


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise WrongError(value, "a whole number")
    return value


def _number(value: object) -> float:
    """NaN for null, which stands for a value that was not finite."""
    if value is None:
        return math.nan
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not abs(value) < LARGEST_NUMBER:
        raise WrongError(value, "a number below 1e100")
    return value


SCALARS = {str: _text, int: _count, float: _number, object: lambda value: value}


def _name(where: str, text: str) -> None:
    if len(text) > LONGEST_NAME:
        words = f"has {len(text)} characters, at most {LONGEST_NAME} are allowed"
        raise at(where, WrongError(words))


def _one_of(where: str, value: object, allowed: typing.Collection) -> None:
    if value not in allowed:
        raise at(where, WrongError(value, f"one of {', '.join(map(repr, allowed))}"))


def _problem(found: Problem) -> None:
    _one_of(".verdict", found.verdict, (FAIL, INCOMPLETE, WARN))
    if found.kind not in KINDS:
        raise at(".kind", WrongError(f"is {found.kind:.80}, which this release does not know"))
    value = found.numbers.get("value", 0.0)  # the only one that a program reads
    try:
        if math.isnan(_number(value)):
            raise WrongError(value, "a number")
    except WrongError as error:
        raise at(".numbers.value", error) from None


def _evidence(found: Evidence) -> None:
    for name in (found.name, *found.hashes):
        _name(".name", name)


def _measurement(found: Measurement) -> None:
    _name(".name", found.name)
    _name(".device", found.device)


def _report(found: Report) -> None:
    for name in ("node", "pod", "run_id"):
        _name(f".{name}", getattr(found, name))
    if not found.node:
        raise at(".node", WrongError("is empty"))
    _one_of(".scope", found.scope, (NODE, WORLD))
    _one_of(".requested.device", found.requested.device, ("cuda", "cpu"))
    most = MOST_GPUS if found.scope == NODE else MOST_RANKS
    if found.requested.gpus > most:
        raise at(".requested.gpus", WrongError(f"is more than {most}"))
    if (found.scope == WORLD) != bool(found.world and found.world.nodes):
        raise at(
            ".world", WrongError(found.world, f"nodes in a report of scope {WORLD}, else null")
        )
    try:
        aware = datetime.datetime.fromisoformat(found.started).tzinfo is not None
    except ValueError:
        aware = False
    if not aware:
        raise at(".started", WrongError(found.started, "an ISO 8601 time with a time zone"))


BEYOND: dict[type, Callable] = {
    Problem: _problem, Evidence: _evidence, Measurement: _measurement, Report: _report,
}  # fmt: skip
