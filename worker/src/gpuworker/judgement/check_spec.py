"""Specification of a check, its input (Plan) and its output (Evidence).

A check is one file or folder with a docstring (its first line states what the check proves),
`SPEC`, and either

- `measure(plan) -> Evidence` for one node, run by accept-node, or
- a module of that name in `SPEC.ranks` with `run(context, plan)`, which every rank of a world
  calls (a RankContext), and `evidence(results, plan, nodes) -> Evidence`, which makes evidence of
  what all ranks returned. accept-node starts a world on its node, ddp-tests is one of many nodes.

`problems(evidence, plan)` adds what facts and numbers alone show. The judge calls it, on the node
and in the collector.

Checks are listed without torch (--list, docs), so they import torch inside their functions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from gpuworker.judgement.report import Evidence

LEVELS = ("quick", "full", "burn-in", "prolog")
# Tags of the log, in the order in which the checks run: first what the others depend on.
TAGS = ("ENV", "COMPUTE", "MEMORY", "LINKS", "REPEAT", "TRAIN", "DDP", "STORAGE")


@dataclass(frozen=True)
class Plan:
    """What to test: input of every check."""

    device: str  # "cpu" | "cuda"
    gpus: int  # GPUs that this node must show; 0 on the CPU
    level: str = "quick"
    scratch: Path = Path("/tmp")  # a writable folder for this check alone
    seconds: float = 10  # what this check should take at this level; burn-in checks loop until then
    inject: str = ""  # id of a fault to inject, which proves that its detector works
    processes: int = 2  # local processes of a rehearsal on the CPU
    # "outputs": Path("/out"), "datasets": Path("/data")
    volumes: dict[str, Path] = field(default_factory=dict)
    # versions that must be found: "driver": "570.86"
    expect: dict[str, str] = field(default_factory=dict)
    deadline_s: float = 300  # after which this check is ended
    timeout_s: float = 300  # of one collective across nodes
    nic_gbps: float | None = None  # GB/s of the network card of each GPU, if known
    expected_gbps: float | None = None  # GB/s that two nodes must reach
    models: tuple[str, ...] = ()  # names of the GPUs by index, for the judge

    @property
    def devices(self) -> list[str]:
        return [f"cuda:{index}" for index in range(self.gpus)] if self.device == "cuda" else ["cpu"]

    def budget_s(self, rehearsal_s: float) -> float:
        """What the check should take; a rehearsal at most `rehearsal_s`."""
        return self.seconds if self.device == "cuda" else min(self.seconds, rehearsal_s)

    def injected(self, fault: str) -> bool:
        return self.inject == fault


FASTEST = 1e9  # in every unit; nothing that a node does is as fast


@dataclass(frozen=True)
class Measure:
    """One number that a check promises. A check without a promised number is INCOMPLETE."""

    unit: str
    proves: str
    _: KW_ONLY
    better: str = "higher"  # or "lower"
    # key in limits.py; None: informational, unless the user limits it by its own name
    limit: str | None = None
    fail: float | None = None  # beyond it the check fails: of numbers that no figure bounds
    limit_across_nodes: str | None = None  # key instead of `limit` in a world of several nodes
    # "device": one value per device; "pair": per two devices; "node": at least one value
    each: str = "device"
    least: float = 0.0  # a value below proves nothing
    # Differences between healthy nodes that do not grow with the value, in `unit`: up to this, none
    # is an outlier. inf: not compared with other nodes. 0 for rates: their noise is a share, as the
    # percentages of outliers are.
    noise: float = 0.0
    # What a node can have. A user's limit beyond is met by none, or by every one, and a value that
    # is better cannot be.
    meaningful: tuple[float, float] = (0.0, math.inf)
    # also decided by a service that nodes share, so that an outlier is at most a WARN
    of_others: bool = False
    # Times its ceiling: a larger value is an error of the measurement. Clocks of a GPU may boost
    # beyond those of its data sheet, by less than this.
    ceiling_tolerance: float = 1.15
    # some GPUs cannot have it; else only a node with one GPU, or a rehearsal, may lack it
    optional: bool = False

    @property
    def most(self) -> float:
        return min(self.meaningful[1], FASTEST) if self.better == "higher" else math.inf


@dataclass(frozen=True)
class Spec:
    """A check. `seconds`: level -> stated time on a healthy 8-GPU node; the check does not run at
    other levels.
    """

    tag: str
    seconds: dict[str, float]
    measures: dict[str, Measure] = field(default_factory=dict)
    # fault id -> kind of the finding that proves it
    faults: dict[str, str] = field(default_factory=dict)
    ranks: str = ""  # module in checks of what every rank runs; "": it is no check of ranks
    across_nodes: str = ""  # help of its flag of ddp-tests; "": only accept-node runs it
    takes_volumes: bool = False  # the flag takes folders to test
    prolog: tuple[str, ...] = ()  # the numbers at this level; the others have all
    fingerprints: tuple[str, ...] = ()  # names of the hashes that every device must have
    # What the registry adds. `measure` is for one node, `measure_world` for many: it is called on
    # every rank, and its evidence is that of rank 0. None: it is a check of `ranks`.
    # `problems` raises LookupError, TypeError or ValueError on facts that are damaged.
    name: str = ""
    proves: str = ""
    measure: Callable[[Plan], Evidence] | None = None
    measure_world: Callable[[object, Plan], Evidence] | None = None
    problems: Callable[[Evidence, Plan], None] | None = None

    def measures_at(self, level: str) -> dict[str, Measure]:
        if level != "prolog":
            return self.measures
        return {name: self.measures[name] for name in self.prolog}

    def at(self, level: str) -> Spec:
        """With the numbers of this level only."""
        return dataclasses.replace(self, measures=self.measures_at(level))

    def for_nodes(self, count: int) -> Spec:
        """With the limits of the fabric instead of those of the links within a node, if there are
        several.
        """
        if count < 2:
            return self
        measures = {
            name: dataclasses.replace(measure, limit=measure.limit_across_nodes or measure.limit)
            for name, measure in self.measures.items()
        }
        return dataclasses.replace(self, measures=measures)
