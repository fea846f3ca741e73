"""Typed messages as lines of JSON: one dataclass instance per line, named by its class.

No pickle: a stranger on the port can only produce a line that is refused. Unknown fields are
dropped and missing ones take their default, so that two versions of a program can at least compare
their versions.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Iterable

LINE_LIMIT = 1 << 20  # bytes; the limit for asyncio.StreamReader


def encode(message: object) -> bytes:
    """One line: the fields of a dataclass instance, and its class name as `type`."""
    return (
        json.dumps({"type": type(message).__name__, **dataclasses.asdict(message)}).encode() + b"\n"
    )


class Codec:
    """Decoder for the message classes of one protocol."""

    def __init__(self, classes: Iterable[type]):
        self.classes = {each.__name__: each for each in classes}

    def decode(self, line: bytes) -> object | None:
        """The message on a line, or None for everything else: garbage, an unknown type, a value
        of another type.
        """
        try:
            data = json.loads(line)
            return self.build(self.classes[data.pop("type")], data)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    @staticmethod
    def build(kind: type, data: dict) -> object | None:
        """An instance of a message class, or None if the data do not fit."""
        try:
            return _build(kind, data)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            return None


def _build(kind: type, data: dict) -> object:
    """An instance of a dataclass, also of nested ones. Raises TypeError or ValueError for values
    that do not fit.
    """
    hints = _hints(kind)
    return kind(
        **{name: _value(hints[name], value) for name, value in data.items() if name in hints}
    )


_hints = functools.cache(typing.get_type_hints)


def _value(hint: typing.Any, value: object) -> object:
    options = (
        typing.get_args(hint)
        if typing.get_origin(hint) in (typing.Union, types.UnionType)
        else (hint,)
    )
    for option in options:
        origin, of = typing.get_origin(option) or option, typing.get_args(option)
        if origin is list and of and isinstance(value, list):
            return [_value(of[0], each) for each in value]
        if origin is dict and of and isinstance(value, dict):
            return {key: _value(of[1], each) for key, each in value.items()}
        if dataclasses.is_dataclass(origin) and isinstance(value, dict):
            return _build(origin, value)
        if origin is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, origin) and not (isinstance(value, bool) and origin is not bool):
            return value
        if isinstance(value, str) and isinstance(origin, type) and issubclass(origin, str):
            return origin(value)  # an Enum of texts
    raise TypeError(f"{value!r} is not {hint}")
