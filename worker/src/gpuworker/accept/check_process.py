"""Run one check in a subprocess with a timeout; a crash or a hang makes the check INCOMPLETE.

All processes that the check started are ended with it, so that the next check measures an idle node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gpuworker.accept import fault_injection
from gpuworker.accept.check_spec import Evidence, Plan, Registered
from gpuworker.accept.report import to_json
from gpuworker.runtime.log import log

PROGRESS_S = 30  # between progress lines: a long check without output looks like a hung one
KILL_S = 10  # a killed process is gone in milliseconds, unless it waits in the kernel for a driver
POLL_S = 0.1  # longest delay of the reaction to SIGTERM
SLACK_S = {
    "cuda": 30,
    "cpu": 300,
}  # added to three times the check's time; rehearsals share cores
CLOCK_TOLERANCE = (1.0, 0.01)  # seconds, and share of the check's time, that two clocks may differ: NTP slews 0.0005


class Stuck(Evidence):
    """Evidence of a check whose process cannot be killed: it waits in the kernel, and so would the next check."""


def run_check(
    registered: Registered,
    plan: Plan,
    timeout_s: float | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[Evidence, float]:
    """The check's evidence and its duration in seconds. A check that ends without evidence is INCOMPLETE.

    `timeout_s`: by default three times the planned seconds plus SLACK_S. The check is ended when `stopped` turns true.
    Stuck evidence: the process is still there, and only os._exit ends this one without waiting for it.
    """
    # fork: torch is imported once, and this process never touches a GPU.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix=f"accept-{registered.name}-", ignore_cleanup_errors=True) as scratch:
        timeout_s = timeout_s or 3 * plan.seconds + SLACK_S[plan.device]
        plan = dataclasses.replace(plan, scratch=Path(scratch), deadline_s=timeout_s)
        child = context.Process(target=_measure_in_subprocess, args=(registered, plan, sender))
        wall, start = _clocks(plan, measured=False)
        child.start()
        sender.close()  # so that `receiver` notices the end of the child
        evidence = _wait(receiver, child, registered, plan, timeout_s, stopped)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.join(KILL_S)
        wall_end, end = _clocks(plan, measured=True)
        wall_s, duration_s = wall_end - wall, end - start
    if child.is_alive():
        evidence = Stuck(**vars(evidence or Evidence()))
        evidence.not_measured.append(
            f"the process {child.pid} cannot be killed: the driver hangs; drain the node and reboot it"
        )
    elif evidence is None:
        how = f"signal {-child.exitcode}" if child.exitcode < 0 else f"exit code {child.exitcode}"
        evidence = Evidence(not_measured=[f"the check ended with {how}"])
    tolerance_s = CLOCK_TOLERANCE[0] + CLOCK_TOLERANCE[1] * duration_s
    if abs(wall_s - duration_s) > tolerance_s:
        evidence.not_measured.append(
            f"the wall clock advanced by {wall_s:.1f} s while the monotonic clock advanced by {duration_s:.1f} s: "
            f"the measured times are not reliable"
        )
    return evidence, duration_s


def _clocks(plan: Plan, measured: bool) -> tuple[float, float]:
    """Wall clock and monotonic clock at one moment: the closest pair of a few readings."""
    readings = []
    for _ in range(5):
        before, wall, after = time.monotonic(), fault_injection.wall_clock(plan, measured), time.monotonic()
        readings.append((after - before, wall, after))
    return min(readings)[1:]


def _wait(receiver, child, registered: Registered, plan: Plan, timeout_s: float, stopped) -> Evidence | None:
    """The evidence, or the reason for its absence as `not_measured`; None if the child ended without it."""
    start = logged = time.monotonic()
    while not receiver.poll(POLL_S):
        now = time.monotonic()
        if stopped() or now - start > timeout_s:
            child.kill()
            return Evidence(not_measured=["stopped by SIGTERM" if stopped() else f"not done after {timeout_s:g} s"])
        if now - logged >= PROGRESS_S:
            logged = now
            log(registered.spec.tag, check=registered.name, running_s=round(now - start), expected_s=plan.seconds)
    try:
        evidence = receiver.recv()
    except (EOFError, OSError):
        return None
    except Exception as error:  # unpickling raises anything
        return Evidence(not_measured=[f"its evidence cannot be read: {type(error).__name__}: {error}"])
    if not isinstance(evidence, Evidence):
        return Evidence(not_measured=[f"its evidence cannot be read: it is a {type(evidence).__name__}"])
    return evidence


def _measure_in_subprocess(registered: Registered, plan: Plan, sender) -> None:
    os.setpgid(0, 0)  # the runner ends the whole process group
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        fault_injection.before_measuring(plan)
        evidence = registered.measure(plan)
        to_json(dataclasses.asdict(evidence), indent=None)  # an error here affects this check only
    except Exception as error:  # any error makes the check INCOMPLETE, with the error as reason
        evidence = Evidence(not_measured=[f"{type(error).__name__}: {error}"])
    fault_injection.send(sender, evidence, plan)
