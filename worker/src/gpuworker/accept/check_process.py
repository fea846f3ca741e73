"""One check in a process of its own, with a deadline: a crash or a hang is a finding, not the end.

Whatever the check started ends with it, so that the next one measures an idle node.
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
from gpuworker.accept.registry import Evidence, Plan, Registered
from gpuworker.accept.report import to_json
from gpuworker.runtime.log import log

PROGRESS_S = 30  # a silent check on a long level looks like a hung one
LOOK_S = 0.1  # how long a SIGTERM may wait
SLACK_S = {"cuda": 30, "cpu": 300}  # beside three times the check's time; rehearsals share their cores with anything
CLOCK_TOLERANCE = (1.0, 0.01)  # seconds, and share of the check's time, that two clocks may differ: NTP slews 0.0005


def run_check(
    registered: Registered,
    plan: Plan,
    timeout_s: float | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[Evidence, float]:
    """The check's evidence and its seconds. What ends without evidence is INCOMPLETE by that.

    `timeout_s` is by default three times what the plan gives the check, and SLACK_S. When `stopped` turns true, the
    check is ended.
    """
    # fork: torch is imported once, and this process never touches a GPU.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix=f"accept-{registered.name}-", ignore_cleanup_errors=True) as scratch:
        plan = dataclasses.replace(plan, scratch=Path(scratch))
        child = context.Process(target=_child, args=(registered, plan, sender))
        wall, start = _clocks(plan, measured=False)
        timeout_s = timeout_s or 3 * plan.seconds + SLACK_S[plan.device]
        child.start()
        sender.close()  # so that a dead child ends our waiting
        evidence = _wait(receiver, child, registered, plan, timeout_s, stopped)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.join()
        wall_end, end = _clocks(plan, measured=True)
        wall_s, duration_s = wall_end - wall, end - start
    if evidence is None:
        how = f"signal {-child.exitcode}" if child.exitcode < 0 else f"exit code {child.exitcode}"
        evidence = Evidence(not_measured=[f"the check ended with {how}"])
    tolerance_s = CLOCK_TOLERANCE[0] + CLOCK_TOLERANCE[1] * duration_s
    if abs(wall_s - duration_s) > tolerance_s:
        evidence.not_measured.append(
            f"the wall clock went {wall_s:.1f} s while the monotonic clock went {duration_s:.1f} s: "
            f"no time measured here can be trusted"
        )
    return evidence, duration_s


def _clocks(plan: Plan, measured: bool) -> tuple[float, float]:
    """Wall clock and monotonic clock at one moment: of a few readings the one that nothing came between."""
    readings = []
    for _ in range(5):
        before, wall, after = time.monotonic(), fault_injection.wall_clock(plan, measured), time.monotonic()
        readings.append((after - before, wall, after))
    return min(readings)[1:]


def _wait(receiver, child, registered: Registered, plan: Plan, timeout_s: float, stopped) -> Evidence | None:
    """The evidence, or why there is none; None if the child is dead."""
    start = said = time.monotonic()
    while not receiver.poll(LOOK_S):
        now = time.monotonic()
        if stopped() or now - start > timeout_s:
            child.kill()
            return Evidence(not_measured=["stopped by SIGTERM" if stopped() else f"not done after {timeout_s:g} s"])
        if now - said >= PROGRESS_S:
            said = now
            log(registered.spec.tag, check=registered.name, running_s=round(now - start), of_about_s=plan.seconds)
    try:
        evidence = receiver.recv()
    except (EOFError, OSError):
        return None
    except Exception as error:  # unpickling raises anything
        return Evidence(not_measured=[f"its evidence cannot be read: {type(error).__name__}: {error}"])
    if not isinstance(evidence, Evidence):
        return Evidence(not_measured=[f"its evidence cannot be read: it is a {type(evidence).__name__}"])
    return evidence


def _child(registered: Registered, plan: Plan, sender) -> None:
    os.setpgid(0, 0)  # a check is ended with everything that it started
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        fault_injection.before_measuring(plan)
        evidence = registered.measure(plan)
        to_json(dataclasses.asdict(evidence), indent=None)  # now, when it still costs one check and not the report
    except Exception as error:  # whatever went wrong, the verdict is the same and the reason says what
        evidence = Evidence(not_measured=[f"{type(error).__name__}: {error}"])
    fault_injection.send(sender, evidence, plan)
