"""What a check is, and which checks there are: one file each in accept/checks/, found by itself.

A check file has a docstring (its first line says what the check proves), `SPEC` and `measure(plan) -> Evidence`.
Files are read without torch (for the docs and for --list), so they import torch inside their functions.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from gpuworker.accept import checks
from gpuworker.accept.report import Measurement

LEVELS = ("quick", "full", "burn-in")
# Tags of the log, in the order in which the checks run: what everything else relies on comes first.
TAGS = ("ENV", "COMPUTE", "MEMORY", "LINKS", "REPEAT", "TRAIN", "DDP", "STORAGE")


# Faults of the runner itself, in fault_injection.py: what the verdict's reason must match, and what is done.
RUNNER_FAULTS = {
    "hung-check": (r"not done after \d", "the first check never ends"),
    "crashed-check": (r"the check ended with signal 9", "the process of the first check dies"),
    "parse-failure": (r"its evidence cannot be read", "what the first check hands over is cut off"),
    "lying-clock": (r"the wall clock went \S+ s", "the wall clock jumps by an hour while the first check runs"),
    "bad-limit": (r"limits\.gemm_bf16 is 1e\+06 TFLOP/s, but", "a limit that no GPU can reach"),
    "full-disk": (r"report: \S+ cannot be written: .*No space left on device", "the report's disk is full"),
}


@dataclass(frozen=True)
class Plan:
    """What to test, as every check gets it."""

    device: str  # "cpu" | "cuda"
    gpus: int  # GPUs that this node must show; 0 on the CPU
    level: str = "quick"
    scratch: Path = Path("/tmp")  # a writable folder for this check alone
    seconds: float = 10  # what this check should take at this level; burn-in checks loop until then
    inject: str = ""  # one fault id, to prove that its detector works
    processes: int = 2  # local processes of a rehearsal on the CPU
    volumes: dict[str, Path] = field(default_factory=dict)  # "outputs": Path("/out"), "datasets": Path("/data")
    expect: dict[str, str] = field(default_factory=dict)  # versions that must be found: "driver": "570.86"
    limits_override: dict[str, float] = field(default_factory=dict)  # limits that the user set, by key of limits.yaml

    @property
    def devices(self) -> list[str]:
        return [f"cuda:{index}" for index in range(self.gpus)] if self.device == "cuda" else ["cpu"]

    def injected(self, fault: str) -> bool:
        return self.inject == fault


@dataclass
class Evidence:
    """What a check found, in its own words and numbers; verdict.py makes the verdict of it."""

    measurements: list[Measurement] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)  # not judged; must be JSON
    wrong: list[str] = field(default_factory=list)  # proven faults, each names the part -> FAIL
    doubtful: list[str] = field(default_factory=list)  # -> WARN
    missing: list[str] = field(default_factory=list)  # what could not be measured -> INCOMPLETE
    inapplicable: dict[str, str] = field(default_factory=dict)  # measure -> why this hardware cannot have it
    ceilings: dict[str, tuple[float, str]] = field(default_factory=dict)  # measure -> (ceiling, what it comes from)
    hashes: dict[str, str] = field(default_factory=dict)  # fingerprint -> hex; group in facts["hash_group"]
    samples: dict[str, list[float]] = field(default_factory=dict)  # raw samples for plots, at most 200 a name


@dataclass(frozen=True)
class Measure:
    """One number that a check promises. A promised number that is not there makes the check INCOMPLETE."""

    unit: str
    proves: str
    _: KW_ONLY
    better: str = "higher"  # or "lower"
    limit: str | None = None  # key in limits.yaml; None: informational, unless the user limits it by its own name
    each: str = "device"  # "device": a value for every device; "node": at least one value

    def __post_init__(self) -> None:
        if self.better not in ("higher", "lower") or self.each not in ("device", "node"):
            raise ValueError(f"{self}: better is higher or lower, each is device or node")


@dataclass(frozen=True)
class Spec:
    tag: str
    seconds: dict[str, float]  # level -> stated time on a healthy 8-GPU node; a level not named leaves the check out
    measures: dict[str, Measure] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)  # fault id -> regex that the verdict's reason must match


@dataclass(frozen=True)
class Registered:
    name: str
    proves: str
    spec: Spec
    measure: Callable[[Plan], Evidence]


def load() -> dict[str, Registered]:
    """All checks by name, in the order in which they run.

    Raises ValueError for a file that is no check or that takes the fault id of another.
    """
    found = []
    for module_info in pkgutil.iter_modules(checks.__path__):
        module = importlib.import_module(f"{checks.__name__}.{module_info.name}")
        spec = getattr(module, "SPEC", None)
        if not isinstance(spec, Spec) or not module.__doc__ or not callable(getattr(module, "measure", None)):
            raise ValueError(f"{module.__file__}: a check needs a docstring, SPEC = Spec(…) and measure(plan)")
        if spec.tag not in TAGS or not spec.seconds or set(spec.seconds) - set(LEVELS):
            raise ValueError(f"{module.__file__}: tag must be one of {TAGS}, seconds need levels of {LEVELS}")
        found.append(Registered(module_info.name, module.__doc__.splitlines()[0].rstrip("."), spec, module.measure))
    owners = dict.fromkeys(RUNNER_FAULTS, "the runner")
    for check in found:
        for fault in check.spec.faults:
            if (owner := owners.setdefault(fault, check.name)) != check.name:
                raise ValueError(f"the fault {fault} belongs to {owner} and to {check.name}: rename one")
    return {check.name: check for check in sorted(found, key=lambda c: (TAGS.index(c.spec.tag), c.name))}
