"""The report of one node: checks, measurements and one verdict."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

PASS, WARN, FAIL, INCOMPLETE, SKIP = "PASS", "WARN", "FAIL", "INCOMPLETE", "SKIP"
# The verdict of a node is the worst of its checks. FAIL outranks INCOMPLETE: one proven fault is enough.
WORST_FIRST = (FAIL, INCOMPLETE, WARN, PASS)


@dataclass
class Measurement:
    """One number with its limit. `margin` is value / limit: below 1 the limit is missed."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    limit_source: str | None = None
    margin: float | None = None

    def __post_init__(self) -> None:
        if self.limit:
            self.margin = self.value / self.limit

    @property
    def missed(self) -> bool:
        return self.limit is not None and not self.value >= self.limit  # NaN misses every limit


@dataclass
class Check:
    """What one check found. `reason` says why the verdict is not PASS."""

    name: str
    verdict: str
    reason: str = ""
    measurements: list[Measurement] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    duration_s: float = 0.0


@dataclass
class Report:
    node: str
    pod: str
    run_id: str
    device: str
    started: str
    checks: list[Check] = field(default_factory=list)
    schema_version: int = 1

    @property
    def verdict(self) -> str:
        """PASS needs evidence: at least one check that passed, and none that did worse."""
        found = {check.verdict for check in self.checks}
        return next((verdict for verdict in WORST_FIRST if verdict in found), INCOMPLETE)

    @property
    def reason(self) -> str:
        if not self.checks:
            return "no check ran"
        return "; ".join(f"{c.name}: {c.reason}" for c in self.checks if c.verdict == self.verdict and c.reason)

    @property
    def summary(self) -> str:
        """One line for people: the verdict, then the reason or the numbers."""
        numbers = ", ".join(f"{m.name} {m.value:.4g} {m.unit}" for c in self.checks for m in c.measurements)
        rehearsal = " (CPU rehearsal)" if self.device == "cpu" else ""
        return f"{self.verdict}{rehearsal}: {self.reason or numbers}"

    def to_dict(self) -> dict:
        return {
            **dataclasses.asdict(self),
            "verdict": self.verdict,
            "reason": self.reason,
            "rehearsal": self.device == "cpu",
        }


def write_json(path: Path, data: dict) -> None:
    """Write the whole file or nothing: readers poll for it. JSON has no NaN: what is not a finite number is null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".partial")
    scratch.write_text(json.dumps(_finite(data), indent=1, allow_nan=False) + "\n")
    scratch.replace(path)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
