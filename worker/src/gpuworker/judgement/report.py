"""Report of the checks of one node, or of the checks across nodes: the one declaration of the
format.

It holds what was seen, and no verdict on it. It is written as a JSON file
(schemas/report.schema.json), which also has the node's own verdict, for people: no judge reads it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partialmethod
from typing import Literal, NewType

PASS, WARN, FAIL, INCOMPLETE, SKIP = "PASS", "WARN", "FAIL", "INCOMPLETE", "SKIP"
# The verdict of a node is the worst of its checks. FAIL outranks INCOMPLETE: one proven fault is
# enough.
WORST_FIRST = (FAIL, INCOMPLETE, WARN, PASS)
EXIT_CODES = {PASS: 0, WARN: 0, FAIL: 1, INCOMPLETE: 3}
SCHEMA_VERSION = 5
NODE, WORLD = "node", "world"  # scope of a report
WORLD_REPORT = "report-world.json"
Name = NewType("Name", str)  # of a length that a page can show
LARGEST_NUMBER = 1e100  # no measured value needs more, and sums of such values stay finite


@dataclass(slots=True)
class Measurement:
    """One number of one device ("cuda:3", "rank 5", "cuda:0→cuda:1"; "" is the whole node, or the
    whole world).

    NaN: the value was not finite.
    """

    name: Name
    value: float
    unit: str
    device: Name = ""


@dataclass
class Problem:
    """One problem that a check saw, or that its numbers and facts show.

    `kind` is a key of judgement.kinds.KINDS. `parts` are what it is about: "cuda:3",
    "cuda:0→cuda:1", "rank 5", "node gpu-7", "mlx5_3/1", a volume, the UUID or the PCI address of
    a GPU; none is the whole node. `numbers` show it. `reason` is for people.
    """

    verdict: Literal["FAIL", "INCOMPLETE", "WARN"]
    kind: str
    reason: str
    parts: list[str] = field(default_factory=list)
    numbers: dict[str, object] = field(default_factory=dict)


@dataclass
class Evidence:
    """What one check saw. It has no verdict: judge.py derives it, on the node and in the collector.

    `fail`: a proven fault; `warn`: a doubt; `incomplete`: what could not be measured.
    """

    measurements: list[Measurement] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)  # must be JSON
    problems: list[Problem] = field(default_factory=list)
    # measure -> why this hardware cannot have it
    inapplicable: dict[str, str] = field(default_factory=dict)
    # measure -> (ceiling, its origin)
    ceilings: dict[str, tuple[float, str]] = field(default_factory=dict)
    # fingerprint -> hex; group in facts["hash_group"]
    hashes: dict[Name, str] = field(default_factory=dict)
    name: Name = ""  # of the check
    duration_s: float = 0.0

    def add(self, verdict: str, kind: str, reason: str, *parts: object, **numbers: object) -> None:
        self.problems.append(Problem(verdict, kind, reason, list(map(str, parts)), numbers))

    fail = partialmethod(add, FAIL)
    warn = partialmethod(add, WARN)
    incomplete = partialmethod(add, INCOMPLETE)

    def add_number(self, *its: object) -> None:
        self.measurements.append(Measurement(*its))

    def has(self, *verdicts: str) -> bool:
        return any(problem.verdict in verdicts for problem in self.problems)


def not_done(name: str, kind: str, *reasons: str) -> Evidence:
    """Evidence of a check that could not be done."""
    return Evidence(problems=[Problem(INCOMPLETE, kind, reason) for reason in reasons], name=name)


@dataclass(frozen=True)
class Requested:
    """What a node was requested to test. No `checks`: all of the level."""

    device: Literal["cpu", "cuda"]
    gpus: int
    level: str
    checks: tuple[str, ...] = ()
    limits: dict[str, float] = field(default_factory=dict, hash=False)
    inject: str = ""  # fault that was injected on purpose: the report does not judge the hardware


@dataclass
class WorldNode:
    """One node of a world and its ranks in ascending order."""

    node: str
    ranks: list[int]


@dataclass
class World:
    """The ranks that ran the checks of a report of scope "world", by node."""

    size: int
    nodes: list[WorldNode]


@dataclass
class Report:
    """Evidence of the checks. Scope "node": one node tested itself. Scope "world": the ranks of
    `world` tested each other, and `node` and `pod` are those of rank 0."""

    node: Name
    pod: Name
    run_id: Name
    requested: Requested
    started: str
    checks: list[Evidence] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    duration_s: float = 0.0
    scope: Literal["node", "world"] = NODE
    world: World | None = None  # None in a report of scope "node"
    schema_version: int = SCHEMA_VERSION

    @property
    def models(self) -> list[str]:
        """The names that torch gives the GPUs, by index; of a world, those of all ranks."""
        found = self.facts.get("gpu_models")
        return [str(model) for model in found] if isinstance(found, list) else []

    def listed(self, what: str) -> list[dict]:
        """The items of a list in the facts of the environment check. Any JSON may stand there."""
        found = [each.facts.get(what) for each in self.checks if each.name == "environment"]
        lists = [items for items in found if isinstance(items, list)]
        return [item for items in lists for item in items if isinstance(item, dict)]


def describe(measurements: list[Measurement]) -> list[str]:
    """A few words for each kind of number: `gemm_bf16 cuda:0 731 TFLOP/s`, or `gemm_bf16 712…731
    TFLOP/s` of many.
    """
    kinds: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in measurements:
        kinds.setdefault((measurement.name, measurement.unit), []).append(measurement)
    texts = []
    for (name, unit), found in kinds.items():
        values = [measurement.value for measurement in found]
        one = f"{found[0].device} {values[0]:.4g}".strip()
        texts.append(
            f"{name} {one if len(found) == 1 else f'{min(values):.4g}…{max(values):.4g}'} {unit}"
        )
    return texts


def parsed(text: str | bytes) -> object:
    """JSON in which no key of an object stands twice: readers would differ in the value that
    counts.

    Raises ValueError."""
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(
            f"damaged report: {next(n for n in names if names.count(n) > 1):.80} stands twice"
        )
    return found


def to_json(data: dict, indent: int | None) -> str:
    """JSON has no NaN: a number that is not finite, or above LARGEST_NUMBER, is null."""
    return json.dumps(_finite(data), indent=indent, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    # NaN is not below either
    return None if isinstance(value, float) and not abs(value) < LARGEST_NUMBER else value
