"""Run a check in a subprocess with a timeout; a crash or a hang makes the check INCOMPLETE.

All processes that the check started are ended with it, so that the next check measures an idle
node.
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

from gpuworker.accept import errors, fault_injection
from gpuworker.accept.check_spec import Plan, Registered
from gpuworker.judgement.report import Evidence, not_done, to_json
from gpuworker.runtime.log import log

PROGRESS_S = 30  # between progress lines: a long check without output looks like a hung one
KILL_S = 10  # a killed process is gone in milliseconds, unless it waits in the kernel for a driver
POLL_S = 0.1  # longest delay of the reaction to SIGTERM
# added to three times the check's time; rehearsals share cores
SLACK_S = {"cuda": 30, "cpu": 300}
# seconds, and share of the check's time, that two clocks may differ: NTP slews 0.0005
CLOCK_TOLERANCE = (1.0, 0.01)


class Stuck(Evidence):
    """Evidence of a check whose process cannot be killed: it waits in the kernel, and so would
    the next check. Only os._exit ends this process without waiting for it.
    """


def run(
    registered: Registered,
    plan: Plan,
    timeout_s: float | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[Evidence, float]:
    """The check's evidence and its duration in seconds. A check that ends without evidence is
    INCOMPLETE.

    `timeout_s`: by default three times the planned seconds plus SLACK_S. The check is ended when
    `stopped` turns true.
    """
    timeout_s = timeout_s or 3 * plan.seconds + SLACK_S[plan.device]
    wall, start = _clocks(plan, measured=False)
    # fork: torch is imported once, and this process never touches a GPU.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="accept-", ignore_cleanup_errors=True) as scratch:
        plan = dataclasses.replace(plan, scratch=Path(scratch), deadline_s=timeout_s)
        child = context.Process(target=_measure, args=(registered, plan, sender))
        child.start()
        sender.close()  # so that `_wait` notices the end of the child
        evidence = end_process(child, _wait(receiver, registered, plan, stopped))
        receiver.close()
    wall_end, end = _clocks(plan, measured=True)
    wall_s, duration_s = wall_end - wall, end - start
    if abs(wall_s - duration_s) > CLOCK_TOLERANCE[0] + CLOCK_TOLERANCE[1] * duration_s:
        words = f"the wall clock advanced by {wall_s:.1f} s and the monotonic clock by"
        words = f"{words} {duration_s:.1f} s: the measured times are not reliable"
        evidence.incomplete("clock", words)
    evidence.name = registered.name
    return evidence, duration_s


def end_process(child, evidence: Evidence | None, patience_s: float | None = None) -> Evidence:
    """End the process with all that it started, and add to the evidence how it ended."""
    child.kill()  # it may not yet have a group of its own
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.join(patience_s or KILL_S)
    if child.is_alive():
        evidence = Stuck(**vars(evidence or Evidence()))
        words = (
            f"the process {child.pid} cannot be killed: the driver hangs; drain the node and "
            "reboot it"
        )
        evidence.incomplete("driver-hangs", words)
    elif evidence is None:
        code = child.exitcode
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        evidence = not_done("", "check-failed", f"the check ended with {how}")
    return evidence


def _clocks(plan: Plan, measured: bool) -> tuple[float, float]:
    """Wall clock and monotonic clock at one moment: the closest pair of a few readings."""
    readings = []
    for _ in range(5):
        before, wall = time.monotonic(), fault_injection.wall_clock(plan, measured)
        after = time.monotonic()
        readings.append((after - before, wall, after))
    return min(readings)[1:]


def _wait(receiver, registered: Registered, plan: Plan, stopped) -> Evidence | None:
    """The evidence, or why there is none as its problem; None if the child ended without it."""
    start = logged = time.monotonic()
    while not receiver.poll(POLL_S):
        now = time.monotonic()
        if stopped():
            return not_done("", "not-run", "stopped by SIGTERM")
        if now - start > plan.deadline_s:
            return not_done("", "check-failed", f"not done after {plan.deadline_s:g} s")
        if now - logged >= PROGRESS_S:
            logged, running_s = now, round(now - start)
            log(
                registered.spec.tag, check=registered.name, running_s=running_s,
                expected_s=plan.seconds,
            )  # fmt: skip
    try:
        return receiver.recv()
    except (EOFError, OSError):
        return None
    except Exception as error:  # unpickling raises anything
        words = f"its evidence cannot be read: {type(error).__name__}: {error}"
        return not_done("", "check-failed", words)


def _measure(registered: Registered, plan: Plan, sender) -> None:
    os.setpgid(0, 0)  # the runner ends the whole process group
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    fault_injection.send(sender, measured(registered, plan), plan)


def measured(registered: Registered, plan: Plan) -> Evidence:
    """The check's evidence, measured in this process."""
    try:
        fault_injection.before_measuring(plan)
        evidence = registered.measure(plan)
        # an error here affects this check only
        to_json(dataclasses.asdict(evidence), indent=None)
    except Exception as error:  # any error makes the check INCOMPLETE, with the error as reason
        evidence = Evidence(problems=[errors.problem_of(error)])
    return evidence
