"""The one result that every form (JSON, page, JUnit, Prometheus, table) is made of."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field

from gpuworker.accept.report import FAIL, INCOMPLETE, PASS, SKIP, WARN

FLEET_SCHEMA_VERSION = 1
WORST_FIRST = (FAIL, INCOMPLETE, WARN, PASS, SKIP)
# Who says so: the node itself, what was expected, the vote on fingerprints, the other devices, an earlier run.
FOUND_BY = ("node", "coverage", "vote", "fleet", "baseline")


@dataclass(frozen=True)
class Finding:
    """One thing that is not right, and the part that it is about. An empty node is the fleet as a whole."""

    verdict: str
    reason: str
    node: str = ""
    device: str = ""
    check: str = ""
    found_by: str = "node"


@dataclass(frozen=True)
class Point:
    """A measured value of one device of one node."""

    node: str
    device: str
    value: float
    verdict: str = PASS


@dataclass
class Distribution:
    """All values of one measure over devices of one model, at one level. `judged`: outliers are findings."""

    check: str
    name: str
    unit: str
    model: str
    level: str
    better: str  # "higher", "lower", or "" if nobody knows
    judged: bool
    points: list[Point]
    median: float = 0.0
    mad: float = 0.0  # median absolute deviation, in `unit`
    limit: float | None = None
    warn_limit: float | None = None
    limit_source: str = ""


@dataclass(frozen=True)
class Vote:
    """One fingerprint over the devices of a group that must agree bit for bit."""

    check: str
    name: str
    group: str
    voters: int
    agree: int  # with the majority, or with the largest camp if there is none
    odd: list[str]  # "node device"


@dataclass(frozen=True)
class Curve:
    """A measure over message sizes on one node: (bytes, value), rising."""

    node: str
    check: str
    name: str
    unit: str
    points: list[tuple[float, float]]


@dataclass
class Node:
    node: str
    pod: str
    run_id: str
    device: str
    level: str
    started: str
    own_verdict: str
    reason: str
    checks: dict[str, str]
    gpus_expected: int
    gpus_seen: int
    injected: str = ""
    models: list[str] = field(default_factory=list)
    last_seen: str = ""  # set when the pod is gone and this is what it said before
    verdict: str = INCOMPLETE  # with what vote, fleet and baseline say


@dataclass
class Coverage:
    nodes_expected: int | None  # null: nobody said how many there are
    nodes_reported: int
    missing: list[str]
    gpus_expected: int
    gpus_seen: int


@dataclass
class Fleet:
    coverage: Coverage
    nodes: list[Node]
    findings: list[Finding]
    distributions: list[Distribution] = field(default_factory=list)
    votes: list[Vote] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    schema_version: int = FLEET_SCHEMA_VERSION

    @property
    def verdict(self) -> str:
        """The worst of all nodes and findings; without a node that passed it is INCOMPLETE, never PASS."""
        found = worst([*(node.verdict for node in self.nodes), *(finding.verdict for finding in self.findings)])
        return INCOMPLETE if found in ("", SKIP) else found

    @property
    def reason(self) -> str:
        """Why the verdict is not PASS: the findings of that verdict, the first few in words."""
        reasons = [
            f"{where(f)}: {f.reason}" if where(f) else f.reason for f in self.findings if f.verdict == self.verdict
        ]
        if not reasons and self.verdict != PASS:
            return "no report" if not self.nodes else "no check passed"
        more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        return "; ".join(reasons[:3]) + more

    @property
    def rehearsal(self) -> bool:
        return any(node.device == "cpu" for node in self.nodes)

    @property
    def checks(self) -> list[str]:
        """Names of all checks, in the order in which nodes ran them."""
        return list(dict.fromkeys(name for node in self.nodes for name in node.checks))

    def count(self, verdict: str) -> int:
        return sum(node.verdict == verdict for node in self.nodes)

    def to_dict(self) -> dict:
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "rehearsal": self.rehearsal,
            **dataclasses.asdict(self),
        }


def worst(verdicts: list[str]) -> str:
    return next((verdict for verdict in WORST_FIRST if verdict in verdicts), "")


def where(finding: Finding) -> str:
    return " ".join(part for part in (finding.node, finding.device, finding.check) if part)


def coverage_text(fleet: Fleet) -> str:
    """How much of the fleet this is, in words; also when nobody knows."""
    coverage, reported = fleet.coverage, fleet.coverage.nodes_reported
    known = coverage.nodes_expected is not None
    nodes = f"{reported} of {coverage.nodes_expected if known else 'an unknown number of'} nodes reported"
    gpus = f", {coverage.gpus_seen} of {coverage.gpus_expected} GPUs" if coverage.gpus_expected else ""
    return nodes + gpus


def natural(text: str) -> list:
    """Sort key: node-2 before node-10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part]
