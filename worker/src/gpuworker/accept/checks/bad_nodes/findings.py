"""What the search for bad nodes works with: the outcome of one group test, and what all of them prove."""

from __future__ import annotations

from dataclasses import dataclass, field

Group = tuple[int, ...]  # nodes in ascending order


@dataclass(frozen=True)
class Outcome:
    """One group test: the slowest exchange in GB/s, and in words what else was wrong (wrong data, a time-out).

    `suspects` are pairs of nodes that stood out: hints that spare a search, never a proof.
    """

    gbps: float
    fault: str = ""
    suspects: tuple[Group, ...] = ()

    def __str__(self) -> str:
        return self.fault or f"{self.gbps:.3g} GB/s"


@dataclass
class Findings:
    """`bad_nodes` and `bad_links` are proven, by what was seen; of `undecided` parts nobody can tell."""

    bad_nodes: dict[int, str] = field(default_factory=dict)
    bad_links: dict[Group, str] = field(default_factory=dict)
    undecided: dict[Group, str] = field(default_factory=dict)
    unexplained: list[str] = field(default_factory=list)
    reference_gbps: float | None = None
    rounds: int = 0
    tests: int = 0

    @property
    def faults(self) -> int:
        return len(self.bad_nodes) + len(self.bad_links) + len(self.undecided)
