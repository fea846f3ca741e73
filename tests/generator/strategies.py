"""Hypothesis strategies for job groups, generated from jobgen's schemas, with and without mistakes."""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from jobgen import schema

ROOT = schema.read()
HEADER, TASK = ({**ROOT[part], "definitions": ROOT["definitions"]} for part in ("then", "else"))

# Values that do not fit most fields.
JUNK = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2.5,
    65536,
    "a\n",
    {},
    ["x"],
    [1, 1],
    {"a": "b"},
    {"name": "v"},
    {"docker": "a"},
    [],
]
# Every pattern of the schemas matches some of these.
WORDS = [*Path(__file__).with_name("words.txt").read_text().split(), "", " ", "a b", "a\n", " 4", "x" * 64, "x" * 300]


class Maker:
    """Generator of values that a schema accepts; `mistakes` is the percentage of other values."""

    def __init__(self, root: dict, chance: random.Random, mistakes: int):
        self.root, self.chance, self.mistakes = root, chance, mistakes

    def value(self, part: dict) -> object:
        if self.wrong():
            return self.chance.choice(JUNK if self.chance.random() < 0.5 else WORDS)
        part = self.resolve(part)
        if "if" in part:
            return self.value(self.chance.choice([part[key] for key in ("then", "else") if self.usable(part[key])]))
        if "anyOf" in part:
            return self.value(self.chance.choice([each for each in part["anyOf"] if self.usable(each)]))
        if "enum" in part:
            return self.chance.choice(part["enum"])
        kind = part.get("type", "object")
        return getattr(self, f"make_{self.chance.choice(kind) if isinstance(kind, list) else kind}")(part)

    def resolve(self, part: dict) -> dict:
        while "$ref" in part:
            part = self.root["definitions"][part["$ref"].rpartition("/")[2]]
        return part

    def usable(self, part: dict) -> bool:
        part = self.resolve(part)
        return "not" not in part

    def wrong(self) -> bool:
        return self.chance.random() * 100 < self.mistakes

    def make_object(self, part: dict) -> dict:
        fields = {key: each for key, each in part.get("properties", {}).items() if self.usable(each) or self.wrong()}
        required = part.get("required", ())
        often = min(1.0, 4 / (len(fields) + 1))
        chosen = {key: each for key, each in fields.items() if key in required or self.chance.random() < often}
        made = {key: self.value(each) for key, each in chosen.items() if not (key in required and self.wrong())}
        rest = part.get("additionalProperties", False)
        if isinstance(rest, dict) and self.usable(rest):
            names = part.get("propertyNames", {"type": "string"})
            for _ in range(self.chance.randint(part.get("minProperties", 0), part.get("maxProperties", 2))):
                made[str(self.value(names))] = self.value(rest)
        if self.wrong():
            made[self.chance.choice(["nmae", "runn", "x"])] = self.chance.choice(JUNK)
        return made

    def make_array(self, part: dict) -> list:
        items = part.get("items", {"type": "string"})
        size = self.chance.randint(part.get("minItems", 0), part.get("maxItems", 3))
        made = [self.value(items) for _ in range(size)] if self.usable(items) else []
        return (
            list({repr(item): item for item in made}.values()) if "uniqueItems" in part and not self.wrong() else made
        )

    def make_string(self, part: dict) -> str:
        words = fitting(part["pattern"]) if "pattern" in part else tuple(filter(None, WORDS))
        return self.chance.choice(words)

    def make_integer(self, part: dict) -> int:
        low = part.get("minimum", 0)
        return self.chance.randint(low, min(part.get("maximum", low + 10), low + 1000))

    def make_number(self, part: dict) -> float:
        low = part.get("exclusiveMinimum", part.get("minimum", 0))
        return self.chance.choice([low + 0.5, low + 1, 8])

    def make_boolean(self, part: dict) -> bool:
        return self.chance.random() < 0.5

    def make_null(self, part: dict) -> None:
        return None


@cache
def fitting(pattern: str) -> tuple[str, ...]:
    words = tuple(word for word in WORDS if re.search(pattern, word) and "\n" not in word)
    assert words, pattern
    return words


def documents(root: dict, mistakes: int) -> st.SearchStrategy[object]:
    return st.integers(0, 2**32).map(lambda seed: Maker(root, random.Random(seed), mistakes).value(root))
