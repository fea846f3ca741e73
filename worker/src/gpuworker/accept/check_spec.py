"""Specification of a check, its input (Plan) and its output (Evidence).

A check is one file or folder with a docstring (its first line states what the check proves), `SPEC`, and one or both of

- `measure(plan) -> Evidence` for one node, run by accept-node,
- `measure_world(context, plan) -> Evidence` for a world of many nodes: ddp-tests calls it on every rank (a RankContext)
  and judges what rank 0 returns.

`problems(evidence, plan)` finds what facts and numbers alone show. A reader of reports calls it, too.

Checks are listed without torch (--list, docs), so they import torch inside their functions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from gpuworker.accept.report import Measurement

LEVELS = ("quick", "full", "burn-in")
# Tags of the log, in the order in which the checks run: first what the others depend on.
TAGS = ("ENV", "COMPUTE", "MEMORY", "LINKS", "REPEAT", "TRAIN", "DDP", "STORAGE")

DEVICES, WORLD = "devices", "world"  # processes that checks share: one that uses all GPUs, one with a rank per GPU

# Faults of the runner itself, in fault_injection.py: id -> (regex that the verdict's reason must match, what happens).
RUNNER_FAULTS = {
    "hung-check": (r"not done after \d", "the first check never ends"),
    "crashed-check": (r"the check ended with signal 9", "the process of the first check is killed"),
    "parse-failure": (r"its evidence cannot be read", "the evidence of the first check is truncated"),
    "lying-clock": (r"the wall clock advanced by \S+ s", "the wall clock jumps by an hour during the first check"),
    "bad-limit": (r"limits\.gemm_bf16 is 1e\+06 TFLOP/s, but", "a limit that no GPU can reach"),
    "port-errors": (r"mlx5_0/1: new errors .* 12 symbol_error", "a network port counts errors while the checks run"),
    "pcie-errors": (
        r"PCIe link of 0000:3b:00.0: new errors .* 5000 correctable",
        "a PCIe link counts errors while the checks run",
    ),
    "full-disk": (r"report: \S+ cannot be written: .*No space left on device", "the report's disk is full"),
}


@dataclass(frozen=True)
class Plan:
    """What to test: input of every check."""

    device: str  # "cpu" | "cuda"
    gpus: int  # GPUs that this node must show; 0 on the CPU
    level: str = "quick"
    scratch: Path = Path("/tmp")  # a writable folder for this check alone
    shared: Path | None = None  # a folder for what stays for the next check, if that runs in the same process
    seconds: float = 10  # what this check should take at this level; burn-in checks loop until then
    inject: str = ""  # id of a fault to inject, which proves that its detector works
    processes: int = 2  # local processes of a rehearsal on the CPU
    volumes: dict[str, Path] = field(default_factory=dict)  # "outputs": Path("/out"), "datasets": Path("/data")
    expect: dict[str, str] = field(default_factory=dict)  # versions that must be found: "driver": "570.86"
    deadline_s: float = 300  # after which this check is ended
    timeout_s: float = 300  # of one collective across nodes
    nic_gbps: float | None = None  # GB/s of the network card of each GPU, if known
    expected_gbps: float | None = None  # GB/s that two nodes must reach

    @property
    def devices(self) -> list[str]:
        return [f"cuda:{index}" for index in range(self.gpus)] if self.device == "cuda" else ["cpu"]

    def injected(self, fault: str) -> bool:
        return self.inject == fault


@dataclass
class Evidence:
    """Observations of a check, from which verdict.py derives the verdict. Each text names the part concerned."""

    measurements: list[Measurement] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)  # not judged; must be JSON
    failures: list[str] = field(default_factory=list)  # proven faults -> FAIL
    warnings: list[str] = field(default_factory=list)  # -> WARN
    not_measured: list[str] = field(default_factory=list)  # -> INCOMPLETE
    inapplicable: dict[str, str] = field(default_factory=dict)  # measure -> why this hardware cannot have it
    ceilings: dict[str, tuple[float, str]] = field(default_factory=dict)  # measure -> (ceiling, its origin)
    hashes: dict[str, str] = field(default_factory=dict)  # fingerprint -> hex; group in facts["hash_group"]
    samples: dict[str, list[float]] = field(default_factory=dict)  # raw samples for plots


@dataclass(frozen=True)
class Measure:
    """One number that a check promises. A check without a promised number is INCOMPLETE."""

    unit: str
    proves: str
    _: KW_ONLY
    better: str = "higher"  # or "lower"
    limit: str | None = None  # key in limits.yaml; None: informational, unless the user limits it by its own name
    limit_across_nodes: str | None = None  # key instead of `limit` in a world of several nodes
    each: str = "device"  # "device": one value per device; "pair": per two devices; "node": at least one value
    least: float = 0.0  # a value below or above these proves nothing
    most: float = 1e9  # in every unit; nothing that a node does is as fast
    # Differences between healthy nodes that do not grow with the value, in `unit`: up to this, none is an outlier.
    # inf: not compared with other nodes. 0 for rates: their noise is a share, as the percentages of outliers are.
    noise: float = 0.0
    meaningful: tuple[float, float] = (0.0, math.inf)  # a user's limit beyond is met by no node, or by every one
    optional: bool = False  # some GPUs cannot have it; else only a node with one GPU, or a rehearsal, may lack it

    def __post_init__(self) -> None:
        if self.better not in ("higher", "lower") or self.each not in ("device", "pair", "node"):
            raise ValueError(f"{self}: better is higher or lower, each is device, pair or node")


@dataclass(frozen=True)
class Spec:
    """`seconds`: level -> stated time on a healthy 8-GPU node. The check does not run at other levels."""

    tag: str
    seconds: dict[str, float]
    measures: dict[str, Measure] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)  # fault id -> regex that the verdict's reason must match
    across_nodes: str = ""  # help of the check's flag of ddp-tests, which `measure_world` needs
    takes_volumes: bool = False  # the flag takes folders to test
    fingerprints: tuple[str, ...] = ()  # names of the hashes that every device must have
    process: str = ""  # DEVICES or WORLD: checks in a row that may share a process; "": each has its own

    def for_nodes(self, count: int) -> Spec:
        """The spec with the limits of the fabric instead of those of the links within a node, if there are several."""
        if count < 2:
            return self
        measures = {
            name: dataclasses.replace(measure, limit=measure.limit_across_nodes or measure.limit)
            for name, measure in self.measures.items()
        }
        return dataclasses.replace(self, measures=measures)


@dataclass(frozen=True)
class Registered:
    """A check that was found. `measure` is None for a check that needs several nodes.

    `problems` raises LookupError, TypeError or ValueError on facts that are damaged.
    """

    name: str
    proves: str
    spec: Spec
    measure: Callable[[Plan], Evidence] | None
    measure_world: Callable[[object, Plan], Evidence] | None = None
    problems: Callable[[Evidence, Plan], None] | None = None
