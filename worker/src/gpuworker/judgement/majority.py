"""Which value most have: more than half of those that should have the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value", bound=Hashable)


def majority(values: Mapping[Key, Value]) -> tuple[Value, int, list[Key]]:
    """The most common value, how many have it, and the keys with another one. Without a majority
    the number is 0, and the keys are all.
    """
    usual, agree = Counter(values.values()).most_common(1)[0]
    if 2 * agree <= len(values):
        return usual, 0, list(values)
    return usual, agree, [key for key, value in values.items() if value != usual]
