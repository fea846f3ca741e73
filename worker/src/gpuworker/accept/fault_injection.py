"""Fault injection (`accept-node --inject FAULT`): proves that the verdict names the fault.

The faults of a check are listed in its SPEC and implemented where it measures. This file has those
of the runner.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from gpuworker.accept.check_spec import Plan, Registered
from gpuworker.accept.limits import problems
from gpuworker.judgement.report import Evidence

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


def known_faults(checks: dict[str, Registered]) -> list[Fault]:
    own = [Fault(fault, "", kind) for fault, kind in RUNNER_FAULTS.items()]
    return own + [
        Fault(f, check.name, kind)
        for check in checks.values()
        for f, kind in check.spec.faults.items()
    ]


def before_measuring(plan: Plan) -> None:
    if plan.injected("hung-check"):
        time.sleep(1e6)
    if plan.injected("crashed-check"):
        os.kill(os.getpid(), signal.SIGKILL)


def send(sender, evidence: Evidence, plan: Plan) -> None:
    """Send the evidence to the runner."""
    if plan.injected("parse-failure"):
        sender.send_bytes(b"\x80\x04 truncated")
    else:
        sender.send(evidence)


def wall_clock(plan: Plan, measured: bool) -> float:
    """time.time(), before the check and after it has `measured`."""
    return time.time() + (3600 if measured and plan.injected("lying-clock") else 0)


def refused_limits(plan: Plan, models: tuple[str, ...]) -> list[str]:
    return list(problems({"gemm_bf16": 1e6}, models).values()) if plan.injected("bad-limit") else []


def before_writing(report: Path, inject: str) -> None:
    if inject == "full-disk":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(report))
