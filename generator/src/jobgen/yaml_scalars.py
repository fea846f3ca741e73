"""Types and values of plain YAML 1.1 scalars, as PyYAML's SafeLoader reads them."""

from __future__ import annotations

import re
from functools import lru_cache

import yaml

_TAG = "tag:yaml.org,2002:"
DATE = f"{_TAG}timestamp"
_RESOLVERS = yaml.SafeLoader.yaml_implicit_resolvers
SURROGATE = re.compile("[\ud800-\udfff]")
_LONGEST = 400  # digits of a number; longer ones take long to convert and are never meant
_TRUE, _FALSE = ("yes", "true", "on"), ("no", "false", "off")


def tag(text: str) -> str | None:
    """Return the tag of a plain scalar; None for text."""
    for found, pattern in _RESOLVERS.get(text[:1], ()):
        if pattern.match(text):
            return found
    return None


@lru_cache(maxsize=10_000)
def construct(tag: str, text: str) -> object:
    """Return the value of a scalar with a tag. Raises ValueError with advice."""
    kind = tag.removeprefix(_TAG)
    try:
        if len(text) > _LONGEST and kind in ("int", "float"):
            raise ValueError
        if kind in ("str", "!", "merge"):
            return text
        if kind == "null":
            return None
        if kind == "bool":
            return {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}[text.lower()]
        if kind == "int":
            return _integer(text.replace("_", ""))
        if kind == "float":
            return _float(text.replace("_", "").lower())
        if kind == "timestamp":
            return _date(text)
    except (AttributeError, LookupError, ValueError):
        raise ValueError("YAML cannot read this value; put it in quotes") from None
    if kind == "binary":
        raise ValueError("binary values are not supported")
    if kind == "value":
        raise ValueError("YAML cannot read this value; put it in quotes")
    raise ValueError("an unknown YAML tag; remove it")


def _integer(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-")
    if ":" in digits:
        return sign * int(_sexagesimal(digits, int))
    base = {"0b": 2, "0x": 16}.get(digits[:2].lower()) or (8 if digits[:1] == "0" and digits != "0" else 10)
    return sign * int(digits[2:] if base in (2, 16) else digits, base)


def _float(text: str) -> float:
    sign = -1.0 if text.startswith("-") else 1.0
    digits = text.lstrip("+-")
    if digits in (".inf", ".nan"):
        return sign * float(digits[1:])
    return sign * (_sexagesimal(digits, float) if ":" in digits else float(digits))


def _sexagesimal(digits: str, number: type) -> float:
    total = 0
    for part in digits.split(":"):
        total = total * 60 + number(part)
    return total


def _date(text: str) -> str:
    """Return the date or time as Python's str() writes the value of SafeLoader."""
    node = yaml.ScalarNode(DATE, text)
    return str(yaml.constructor.SafeConstructor().construct_yaml_timestamp(node))
