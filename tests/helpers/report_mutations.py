"""Mutations of a report, generated from its dataclasses: a field that is added there is covered."""

import dataclasses
import re
import typing
from collections.abc import Iterator

MISSING = ...  # tests.helpers.fleet_reports.changed() removes the field
NAN, ENDLESS = float("nan"), float("inf")
VALUES = (
    MISSING,
    None,
    True,
    0,
    -1,
    0.5,
    1e90,
    NAN,
    ENDLESS,
    "",
    "other",
    "9",
    [],
    [None],
    {},
    {"other": 1},
)
SOME = (MISSING, None, 0, "other")  # for further fields of the same kind


def mutations(
    value: object, kind: object, at: str = "", seen: set[str] | None = None
) -> Iterator[tuple[str, object]]:
    """Path and new value of every change of one place: a value of every JSON type, an item that
    stands there twice.
    """
    seen = set() if seen is None else seen
    if at:
        values = SOME if place(at) in seen else VALUES
        seen.add(place(at))
        yield from ((at, new) for new in values if new != value or type(new) is not type(value))
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            yield from mutations(
                value[field.name], hints[field.name], f"{at}/{field.name}".lstrip("/"), seen
            )
    elif typing.get_origin(kind) in (list, dict) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items if at.count("/") < 2 else list(items)[:1]:
            yield from mutations(item, typing.get_args(kind)[-1], f"{at}/{key}", seen)
        if isinstance(value, list) and len(value) > 1:
            yield at, [*value[:-1], value[0]]


def place(path: str) -> str:
    """The path of a field without indices: checks/measurements/value."""
    return re.sub(r"/\d+", "", path)
