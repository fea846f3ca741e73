"""Fault injection (`accept-node --inject FAULT`): proves that the verdict names the fault.

The faults of a check are listed in its SPEC, those of the runner here. All are implemented where
they would occur.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuworker.judgement.check_spec import Plan, Spec
from gpuworker.judgement.limits import problems

# Faults of the runner: id -> kind of the finding that proves it.
RUNNER_FAULTS = {
    "hung-check": "check-failed",  # the first check never ends
    "crashed-check": "check-failed",  # its process is killed
    "parse-failure": "check-failed",  # its evidence is truncated
    "lying-clock": "clock",  # the wall clock jumps by an hour during it
    "bad-limit": "bad-limit",  # a limit that no GPU can reach
    "port-errors": "port-errors",  # a network port counts errors while the checks run
    "pcie-errors": "pcie-errors",  # a PCIe link does
    "full-disk": "volume-full",  # the report's disk is full
}


@dataclass(frozen=True)
class Fault:
    """`check`: the check that finds it, "" for the runner. `kind`: of the finding that proves
    it.
    """

    id: str
    check: str
    kind: str


def known_faults(checks: dict[str, Spec]) -> list[Fault]:
    own = [Fault(fault, "", kind) for fault, kind in RUNNER_FAULTS.items()]
    return own + [
        Fault(f, check.name, kind) for check in checks.values() for f, kind in check.faults.items()
    ]


def refused_limits(plan: Plan, models: tuple[str, ...]) -> list[str]:
    return list(problems({"gemm_bf16": 1e6}, models).values()) if plan.injected("bad-limit") else []
