"""Fleet report: the result that JSON, page, Prometheus text and table are written from."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpuworker.judgement.findings import Finding, GpuIdentity
from gpuworker.judgement.report import INCOMPLETE, PASS, SKIP
from gpuworker.judgement.report import WORST_FIRST as TESTED_WORST_FIRST
from gpuworker.judgement.suspects import Cause, Suspect

FLEET_SCHEMA_VERSION = 5
WORST_FIRST = (*TESTED_WORST_FIRST, SKIP)


@dataclass(frozen=True, slots=True)  # a fleet has hundreds of thousands
class Point:
    """A measured value of one device of one node."""

    node: str
    device: str
    value: float
    verdict: str = PASS


@dataclass
class Distribution:
    """All values of one measure for devices of one model, at one level. `judged`: outliers are
    findings.

    The points of scope "world" have the name of a world in place of a node.
    """

    check: str
    name: str
    unit: str
    model: str
    level: str
    scope: str
    better: str  # "higher", "lower", or "" if the report does not include it
    judged: bool
    points: list[Point]
    median: float = 0.0
    mad: float = 0.0  # median absolute deviation, in `unit`
    limit: float | None = None
    warn_limit: float | None = None
    limit_source: str = ""
    meaning: str = ""

    def to_dict(self) -> dict:
        """Values by node, each in the order of `devices`: a fleet has hundreds of thousands."""
        devices = list(dict.fromkeys(point.device for point in self.points))
        place, values = {name: index for index, name in enumerate(devices)}, {}
        for point in self.points:
            row = values.setdefault(point.node, [None] * len(devices))
            row[place[point.device]] = float(f"{point.value:.6g}")
        outliers = [
            [p.node, p.device, p.verdict, p.value] for p in self.points if p.verdict != PASS
        ]
        plain = {key: value for key, value in vars(self).items() if key != "points"}
        return {**plain, "devices": devices, "values": values, "outliers": outliers}


@dataclass(kw_only=True)
class Tested:
    """What a report of checks shows."""

    run_id: str
    device: str
    level: str
    started: str
    verdict: str
    reason: str
    checks: dict[str, str]
    injected: str = ""


@dataclass(kw_only=True)
class Node(Tested):
    """One node: its report, and the verdict with everything that was found about it, also by other
    nodes' reports and the fleet.
    """

    node: str
    pod: str
    reported_verdict: str
    gpus_expected: int
    gpus_seen: int
    models: list[str] = field(default_factory=list)
    last_seen: str = ""  # set when the pod no longer exists
    facts: dict[str, str] = field(default_factory=dict)  # versions of software and firmware
    gpus: list[GpuIdentity] = field(default_factory=list)


@dataclass(kw_only=True)
class World(Tested):
    """One run of cross-node checks."""

    name: str
    nodes: list[str]
    ranks: int


@dataclass
class Coverage:
    nodes_expected: int | None  # None: not set
    nodes_reported: int
    missing: list[str]
    gpus_expected: int
    gpus_seen: int


@dataclass(eq=False)  # a result is itself: what is made of it is kept
class Fleet:
    coverage: Coverage
    nodes: list[Node]
    worlds: list[World]
    findings: list[Finding]
    distributions: list[Distribution] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    suspects: list[Suspect] = field(default_factory=list)  # the findings by part, the worst first
    causes: list[Cause] = field(default_factory=list)  # the suspects by what they have
    racks: dict[str, list[str]] = field(default_factory=dict)  # all nodes, also without a report
    # node -> its mark in Kubernetes, or why it has none (marks.py, node_actions.py)
    marks: dict[str, str] = field(default_factory=dict)
    rehearsal: bool = False
    name: str = ""  # of the installation
    schema_version: int = FLEET_SCHEMA_VERSION

    # Kept: a result does not change, and a damaged fleet has thousands of findings that ask for its
    # verdict.
    @functools.cached_property
    def verdict(self) -> str:
        """The worst verdict of all nodes and findings; INCOMPLETE if no node passed."""
        found = worst_verdict(each.verdict for each in [*self.nodes, *self.findings])
        return INCOMPLETE if found in ("", SKIP) else found

    @functools.cached_property
    def reason(self) -> str:
        """Why the verdict is not PASS: the first three findings with that verdict."""
        found = [each for each in self.findings if each.verdict == self.verdict]
        reasons = [
            f"{place}: {each.reason}" if (place := each.place) else each.reason for each in found
        ]
        if not reasons and self.verdict != PASS:
            return "no report" if not self.nodes else "no check passed"
        more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        return "; ".join(reasons[:3]) + more


def json_text(fleet: Fleet) -> str:
    """The fleet report as JSON, by the schema schemas/fleet.yaml."""
    head = {"verdict": fleet.verdict, "reason": fleet.reason}
    found = head | vars(fleet)
    return json.dumps(found, default=_fields, allow_nan=False, separators=(",", ":")) + "\n"


def _fields(part: object) -> dict:
    return part.to_dict() if isinstance(part, Distribution) else vars(part)


def worst_verdict(verdicts: Iterable[str]) -> str:
    """The worst of the verdicts, "" if there are none."""
    found = set(verdicts)
    return next((verdict for verdict in WORST_FIRST if verdict in found), "")


def headline(fleet: Fleet) -> str:
    """Verdict, number of nodes and GPUs that reported, and the number expected."""
    coverage = fleet.coverage
    nodes = coverage.nodes_expected
    expected = "an unknown number of" if nodes is None else nodes
    gpus = f", {coverage.gpus_seen} of {coverage.gpus_expected} GPUs" * bool(coverage.gpus_expected)
    verdict = fleet.verdict + " (CPU rehearsal)" * fleet.rehearsal
    return f"{verdict}: {coverage.nodes_reported} of {expected} nodes reported{gpus}"


def summary(fleet: Fleet) -> str:
    """One line: verdict, coverage and reason."""
    return f"{headline(fleet)}{fleet.reason and '; '}{fleet.reason}"


@functools.lru_cache(maxsize=1 << 14)
def natural_sort_key(text: str) -> tuple:
    """Sort key that puts node-2 before node-10."""
    parts = (part for part in re.split(r"(\d+)", text) if part)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)
