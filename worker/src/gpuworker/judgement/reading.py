"""Reader of a report: JSON to the types of report.py, once, at the door. Behind it everything has
the declared type.

The dataclasses are the one declaration of the form. What programs rely on beyond the types is in
BEYOND.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
import json
import math
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator

from gpuworker.judgement.kinds import KINDS
from gpuworker.judgement.report import (
    LARGEST_NUMBER,
    NODE,
    SCHEMA_VERSION,
    WORLD,
    Name,
    Problem,
    Report,
)

NOT_A_REPORT = "JSON that is not a report"
OWN_FIELDS = ("run_id", "started")  # with these it is a report that has lost its checks
DEEPEST = 32  # levels of nested lists and objects; a report has about ten
MOST_GPUS = {NODE: 1024, WORLD: 1 << 20}
LONGEST_NAME = 253  # characters, as Kubernetes allows for the name of a node
Reader = Callable[[object], object]


class WrongError(ValueError):
    """A value that is not of the declared type; the path to it is added on the way out."""

    path = ""

    def __str__(self) -> str:
        return "damaged report: " + f"{self.path} {self.args[0]}".lstrip(". ")


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
        raise WrongError(f"has more than {DEEPEST} levels of nested lists and objects")
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
def _reader(kind: object) -> Reader:
    """A function that makes a value of an annotated type from a JSON value."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind in SCALARS:
        return SCALARS[kind]
    if origin is typing.Literal:
        return functools.partial(_one_of, inner)
    if origin is types.UnionType:
        read = _reader(inner[0])
        return lambda value: None if value is None else read(value)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        readers = {field.name: _reader(hints[field.name]) for field in dataclasses.fields(kind)}
        return functools.partial(_object, kind, readers)
    readers = [_reader(each) for each in inner if each is not ...]
    if origin is dict:
        return functools.partial(_map, *readers)
    pair = len(readers) if len(readers) > 1 else None
    return functools.partial(_list, origin, readers, pair)


def _object(kind: type, readers: dict[str, Reader], value: object) -> object:
    found = _of(dict, value, "an object")
    for name in readers:
        if name not in found:
            raise WrongError(f"has no {name}")
    made = kind(*_read(".{}", readers, readers.values(), map(found.get, readers)))
    if kind in BEYOND:
        BEYOND[kind](made)
    return made


def _list(make: type, readers: list[Reader], length: int | None, value: object) -> list | tuple:
    found = _of(list, value, "a list")
    if length not in (None, len(found)):
        raise _wrong(value, f"a list of {length}")
    return make(_read("[{}]", itertools.count(), itertools.cycle(readers), found))


def _map(read_key: Reader, read: Reader, value: object) -> dict:
    found = _of(dict, value, "an object")
    keys = _read("[{!r:.80}]", found, itertools.repeat(read_key), found)
    values = _read("[{!r:.80}]", found, itertools.repeat(read), found.values())
    return dict(zip(keys, values, strict=True))


def _read(
    step: str, places: Iterable, readers: Iterable[Reader], values: Iterable
) -> Iterator[object]:
    """The values, each by its own reader. `step`: format of a place in the path to an error."""
    for place, read, value in zip(places, readers, values, strict=False):
        try:
            yield read(value)
        except WrongError as error:
            error.path = step.format(place) + error.path
            raise


def _wrong(value: object, expected: str) -> WrongError:
    return WrongError(f"is {str(value)[:80]!r}, expected {expected}")


def _of(kind: type, value: object, expected: str) -> typing.Any:
    if not isinstance(value, kind):
        raise _wrong(value, expected)
    return value


def _one_of(allowed: tuple, value: object) -> object:
    if value not in allowed:
        raise _wrong(value, f"one of {', '.join(map(repr, allowed))}")
    return value


def _text(value: object) -> str:
    return sys.intern(_of(str, value, "text"))  # thousands of reports have the same words


def _name(value: object) -> str:
    if len(text := _text(value)) > LONGEST_NAME:
        raise WrongError(f"has {len(text)} characters, at most {LONGEST_NAME} are allowed")
    return text


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _wrong(value, "a whole number")
    return value


def _number(value: object) -> float:
    """NaN for null, which stands for a value that was not finite."""
    if value is None:
        return math.nan
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not abs(value) < LARGEST_NUMBER:
        raise _wrong(value, "a number below 1e100")
    return value


SCALARS = {
    str: _text, Name: _name, int: _count, float: _number, object: lambda value: value,
}  # fmt: skip


def _problem(found: Problem) -> None:
    if found.kind not in KINDS:
        raise WrongError(f"has the kind {found.kind:.80}, which this release does not know")
    # the only number that a program reads
    if math.isnan(_number(found.numbers.get("value", 0.0))):
        raise WrongError("has a value that is no number")


def _report(found: Report) -> None:
    if not found.node:
        raise WrongError("node is empty")
    if found.requested.gpus > MOST_GPUS[found.scope]:
        raise WrongError(f"requested more than {MOST_GPUS[found.scope]} GPUs")
    if (found.scope == WORLD) != bool(found.world and found.world.nodes):
        raise WrongError(f"world has nodes in a report of scope {WORLD}, else it is null")
    try:
        aware = datetime.datetime.fromisoformat(found.started).tzinfo is not None
    except ValueError:
        aware = False
    if not aware:
        raise WrongError(f"started is {found.started!r:.80}, no ISO 8601 time with a time zone")


BEYOND: dict[type, Callable] = {Problem: _problem, Report: _report}
