"""Run checks in subprocesses with a timeout; a crash or a hang makes its check INCOMPLETE.

Checks in a row with the same SPEC.process share a subprocess, and with it contexts on the GPUs and
a world of ranks, which take seconds to start. A check that could not be done ends it. All processes
that the checks started are ended with it, so that the next check measures an idle node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gpuworker.accept import errors, fault_injection
from gpuworker.accept.check_spec import Plan, Registered
from gpuworker.judgement.report import INCOMPLETE, Evidence, not_done, to_json
from gpuworker.runtime.log import log

PROGRESS_S = 30  # between progress lines: a long check without output looks like a hung one
KILL_S = 10  # a killed process is gone in milliseconds, unless it waits in the kernel for a driver
POLL_S = 0.1  # longest delay of the reaction to SIGTERM
SLACK_S = {
    "cuda": 30,
    "cpu": 300,
}  # added to three times the check's time; rehearsals share cores
# seconds, and share of the check's time, that two clocks may differ: NTP slews 0.0005
CLOCK_TOLERANCE = (1.0, 0.01)


class Stuck(Evidence):
    """Evidence of a check whose process cannot be killed: it waits in the kernel, and so would
    the next check.
    """


class CheckRunner:
    """Runs checks one after the other. Close it at the end. A running check is ended when
    `stopped` turns true.
    """

    def __init__(self, stopped: Callable[[], bool] = lambda: False) -> None:
        self.stopped = stopped
        # that the last check left for the next one
        self._child: multiprocessing.process.BaseProcess | None = None

    def run(
        self,
        registered: Registered,
        plan: Plan,
        timeout_s: float | None = None,
        shared: bool = False,
    ) -> tuple[Evidence, float]:
        """The check's evidence and its duration in seconds. A check that ends without evidence is
        INCOMPLETE.

        `timeout_s`: by default three times the planned seconds plus SLACK_S. `shared`: the next
        check may run in the same process. Stuck evidence: the process is still there, and only
        os._exit ends this one without waiting.
        """
        timeout_s = timeout_s or 3 * plan.seconds + SLACK_S[plan.device]
        wall, start = _clocks(plan, measured=False)
        if self._child is None:
            self._folder = tempfile.TemporaryDirectory(prefix="accept-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        scratch = folder / registered.name
        scratch.mkdir()
        plan = dataclasses.replace(
            plan, scratch=scratch, shared=folder if shared else None, deadline_s=timeout_s
        )
        self._give(registered, plan)
        evidence = _wait(self._connection, self._child, registered, plan, timeout_s, self.stopped)
        if not shared or evidence is None or evidence.has(INCOMPLETE):
            evidence = self._end(evidence)
        else:
            shutil.rmtree(scratch, ignore_errors=True)
        wall_end, end = _clocks(plan, measured=True)
        wall_s, duration_s = wall_end - wall, end - start
        tolerance_s = CLOCK_TOLERANCE[0] + CLOCK_TOLERANCE[1] * duration_s
        if abs(wall_s - duration_s) > tolerance_s:
            words = f"the wall clock advanced by {wall_s:.1f} s and the monotonic clock by"
            words = f"{words} {duration_s:.1f} s: the measured times are not reliable"
            evidence.incomplete("clock", words)
        evidence.name = registered.name
        return evidence, duration_s

    def close(self) -> None:
        if self._child is not None:
            self._end(Evidence())

    def _give(self, registered: Registered, plan: Plan) -> None:
        if self._child is not None:
            with contextlib.suppress(OSError):  # it has ended meanwhile, which `_wait` notices
                self._connection.send((registered, plan))
            return
        # fork: torch is imported once, and this process never touches a GPU.
        context = multiprocessing.get_context("fork")
        self._connection, other = context.Pipe()
        self._child = context.Process(
            target=_serve, args=(registered, plan, other, self._connection)
        )
        self._child.start()
        other.close()  # so that `_wait` notices the end of the child

    def _end(self, evidence: Evidence | None) -> Evidence:
        """End the process with all that it started, and add to the evidence how it ended."""
        child, self._child = self._child, None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.join(KILL_S)
        self._connection.close()
        self._folder.cleanup()
        if child.is_alive():
            evidence = Stuck(**vars(evidence or Evidence()))
            words = f"the process {child.pid} cannot be killed: the driver hangs; drain the node and reboot it"
            evidence.incomplete("driver-hangs", words)
        elif evidence is None:
            how = (
                f"signal {-child.exitcode}" if child.exitcode < 0 else f"exit code {child.exitcode}"
            )
            evidence = not_done("", "check-failed", f"the check ended with {how}")
        return evidence


def _clocks(plan: Plan, measured: bool) -> tuple[float, float]:
    """Wall clock and monotonic clock at one moment: the closest pair of a few readings."""
    readings = []
    for _ in range(5):
        before, wall, after = (
            time.monotonic(),
            fault_injection.wall_clock(plan, measured),
            time.monotonic(),
        )
        readings.append((after - before, wall, after))
    return min(readings)[1:]


def _wait(
    receiver, child, registered: Registered, plan: Plan, timeout_s: float, stopped
) -> Evidence | None:
    """The evidence, or why there is none as its problem; None if the child ended without it."""
    start = logged = time.monotonic()
    while not receiver.poll(POLL_S):
        now = time.monotonic()
        if stopped() or now - start > timeout_s:
            child.kill()
            if stopped():
                return not_done("", "not-run", "stopped by SIGTERM")
            return not_done("", "check-failed", f"not done after {timeout_s:g} s")
        if now - logged >= PROGRESS_S:
            logged = now
            log(
                registered.spec.tag,
                check=registered.name,
                running_s=round(now - start),
                expected_s=plan.seconds,
            )
    try:
        evidence = receiver.recv()
    except (EOFError, OSError):
        return None
    except Exception as error:  # unpickling raises anything
        return not_done(
            "", "check-failed", f"its evidence cannot be read: {type(error).__name__}: {error}"
        )
    if not isinstance(evidence, Evidence):
        return not_done(
            "", "check-failed", f"its evidence cannot be read: it is a {type(evidence).__name__}"
        )
    return evidence


def _serve(registered: Registered, plan: Plan, connection, others) -> None:
    """Measure one check, and further ones that arrive as long as the process is shared.
    `others`: the runner's end.
    """
    others.close()
    os.setpgid(0, 0)  # the runner ends the whole process group
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        try:
            fault_injection.before_measuring(plan)
            evidence = registered.measure(plan)
            # an error here affects this check only
            to_json(dataclasses.asdict(evidence), indent=None)
        except Exception as error:  # any error makes the check INCOMPLETE, with the error as reason
            evidence = Evidence(problems=[errors.problem_of(error)])
        fault_injection.send(connection, evidence, plan)
        if not plan.shared:
            return
        from gpuworker.accept.kernels import timing

        evidence = None
        timing.free_memory()
        try:
            registered, plan = connection.recv()
        except EOFError:  # the runner is gone
            os.killpg(0, signal.SIGKILL)
