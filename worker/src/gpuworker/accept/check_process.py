"""Run a check in a subprocess with a timeout; a crash or a hang makes the check INCOMPLETE.

All processes that the check started are ended with it, so that the next check measures an idle
node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from gpuworker.accept import errors
from gpuworker.judgement.check_spec import Plan, Spec
from gpuworker.judgement.registry import CHECKS
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
    registered: Spec,
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
    begin = logged = time.monotonic()
    wall = time.time()

    def waits() -> None:
        nonlocal logged
        if (now := time.monotonic()) - logged >= PROGRESS_S:
            logged, running_s = now, round(now - begin)
            tag, name = registered.tag, registered.name
            log(tag, check=name, running_s=running_s, expected_s=plan.seconds)

    with tempfile.TemporaryDirectory(prefix="accept-", ignore_cleanup_errors=True) as scratch:
        plan = dataclasses.replace(plan, scratch=Path(scratch), deadline_s=timeout_s)

        def measure(sender: Connection) -> None:
            evidence = measured(registered, plan)
            if plan.injected("parse-failure"):
                sender.send_bytes(b"\x80\x04 truncated")
            else:
                sender.send(evidence)

        evidence = supervise(measure, timeout_s, stopped, waits=waits)
    wall_s = time.time() - wall + 3600 * plan.injected("lying-clock")
    duration_s = time.monotonic() - begin
    if abs(wall_s - duration_s) > CLOCK_TOLERANCE[0] + CLOCK_TOLERANCE[1] * duration_s:
        words = f"the wall clock advanced by {wall_s:.1f} s and the monotonic clock by"
        words = f"{words} {duration_s:.1f} s: the measured times are not reliable"
        evidence.incomplete("clock", words)
    evidence.name = registered.name
    return evidence, duration_s


def supervise(
    work: Callable[[Connection], None],
    deadline_s: float,
    stopped: Callable[[], bool],
    told: Callable[[object], None] = lambda said: None,
    waits: Callable[[], None] = lambda: None,
    patience_s: float | None = None,
) -> Evidence:
    """The evidence that `work` sends from a process of its own, or why there is none.

    `told`: takes what it sends before; `waits`: called while it says nothing; `patience_s`: for
    the end of a killed process, KILL_S by default.
    """
    # fork: torch is imported once, and this process never touches a GPU.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(work, sender))
    child.start()
    sender.close()  # so that the end of the child is noticed
    said, deadline = None, time.monotonic() + deadline_s
    try:
        while not isinstance(said, Evidence):
            if receiver.poll(POLL_S):
                told(said := receiver.recv())
            elif stopped():
                said = not_done("", "not-run", "stopped by SIGTERM")
            elif time.monotonic() > deadline:
                said = not_done("", "check-failed", f"not done after {deadline_s:g} s")
            else:
                waits()
    except (EOFError, OSError):
        said = None
    except Exception as error:  # unpickling raises anything
        words = f"its evidence cannot be read: {type(error).__name__}: {error}"
        said = not_done("", "check-failed", words)
    receiver.close()
    child.kill()  # it may not yet have a group of its own
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.join(patience_s or KILL_S)
    if child.is_alive():
        said = Stuck(**vars(said or Evidence()))
        words = f"the process {child.pid} cannot be killed"
        said.incomplete("driver-hangs", f"{words}: the driver hangs; drain the node and reboot it")
    elif said is None:
        code = child.exitcode
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        said = not_done("", "check-failed", f"the check ended with {how}")
    return said


def _child(work: Callable[[Connection], None], sender: Connection) -> None:
    os.setpgid(0, 0)  # the parent ends the whole process group
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    work(sender)


def measure(check: Spec, plan: Plan) -> Evidence:
    """What the check sees on this node. A check of ranks needs torch to be imported."""
    if check.measure:
        return check.measure(plan)
    from gpuworker.accept.distributed import local_world

    ranks = importlib.import_module(f"{CHECKS}.{check.ranks}")
    return ranks.evidence(local_world.run(plan, ranks.run, plan=plan), plan, 1)


def measured(registered: Spec, plan: Plan) -> Evidence:
    """The check's evidence, measured in this process."""
    try:
        if plan.injected("hung-check"):
            time.sleep(1e6)
        if plan.injected("crashed-check"):
            os.kill(os.getpid(), signal.SIGKILL)
        evidence = measure(registered, plan)
        # an error here affects this check only
        to_json(dataclasses.asdict(evidence), indent=None)
    except Exception as error:  # any error makes the check INCOMPLETE, with the error as reason
        evidence = Evidence(problems=[errors.problem_of(error)])
    return evidence
