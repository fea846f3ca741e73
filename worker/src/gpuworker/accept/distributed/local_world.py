"""World of ranks on this node: one process per GPU, or a few on the CPU, which run one program.

The ranks are forked from the check's process, which has imported torch and has not used a GPU yet.
torchrun would import torch twice in a row, several seconds per check. Across nodes ddp-tests runs
the same programs under torchrun.

Each rank tells which collective it enters, which names the rank that hangs: a time-out is reported
by the ranks that wait, and NCCL ends one of these first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from gpuworker.accept.distributed.rank_context import join
from gpuworker.accept.errors import BrokenWorldError, kind_of, words_of
from gpuworker.judgement.check_spec import Plan
from gpuworker.judgement.report import INCOMPLETE, Problem
from gpuworker.runtime import process_group, processes

STORE_S = 60.0  # most that a rank waits for another one without a collective
# healthy ones take seconds at most; ranks of a rehearsal share cores
COLLECTIVE_S = {"cuda": 20.0, "cpu": 60.0}
END_S = 10  # in which a rank whose work is done ends
KILL_S = 2.0  # a killed process is gone in milliseconds, unless it waits in the kernel for a driver
# States of a process in which it cannot go on by itself
STATES = {
    "T": "is stopped by a signal",
    "t": "is stopped by a debugger",
    "D": "waits in the kernel, for a driver or a disk",
}


def store_timeout_s(plan: Plan) -> float:
    """So few seconds that a hang is reported by the ranks before the check itself is ended."""
    return min(STORE_S, plan.deadline_s / 2)


def timeout_s(plan: Plan) -> float:
    """Seconds of one collective of a world."""
    return min(COLLECTIVE_S[plan.device], plan.deadline_s / 2)


def run(plan: Plan, program: Callable[..., dict], /, **options: object) -> list[dict]:
    """Results of `program(context, **options)` by rank. Raises BrokenWorldError, which names the
    rank that ended.
    """
    with tempfile.TemporaryDirectory(dir=plan.scratch, prefix="world-") as folder:
        return World(plan, Path(folder), program, options).run()


class World:
    """Processes of one program. An error ends them all. `folder`: where they meet."""

    def __init__(
        self, plan: Plan, folder: Path, program: Callable[..., dict], options: dict
    ) -> None:
        self.plan = plan
        self.size = plan.gpus if plan.device == "cuda" else plan.processes
        self.connections, self.processes = [], []
        self.results: dict[int, dict] = {}  # by rank
        self.entered = [(0, "")] * self.size  # number and name of the last collective of each rank
        context = multiprocessing.get_context("fork")
        for rank in range(self.size):
            mine, its = context.Pipe()
            arguments = rank, self.size, folder, its, plan, program, options
            self.processes.append(context.Process(target=_rank, args=arguments))
            self.processes[-1].start()
            its.close()  # so that its end is seen even in the middle of a result
            self.connections.append(mine)

    def run(self) -> list[dict]:
        # before the check itself is ended, which names no rank
        hang_s = self.plan.deadline_s - min(10, 0.2 * self.plan.deadline_s)
        problem, end = None, time.monotonic() + hang_s
        while len(self.results) < self.size and not problem:
            left_s = end - time.monotonic()
            ranks = {self.connections[rank]: rank for rank in self._running()}
            for ready in multiprocessing.connection.wait(list(ranks), max(0, left_s)):
                problem = self._receive(ranks[ready]) or problem
            if left_s < 0 and not problem:
                problem = _failed(f"no result after {hang_s:g} s")
        if problem:
            behind, places = self._places()
            if behind and problem.kind == "check-failed" and not problem.parts:
                problem.kind, problem.parts = "not-arrived", [f"rank {rank}" for rank in behind]
            reasons = "; ".join(filter(None, [problem.reason, *places, *self._kill()]))
            raise BrokenWorldError(dataclasses.replace(problem, reason=reasons))
        for connection in self.connections:
            connection.send(None)
        for process in self.processes:
            process.join(END_S)
        return [self.results[rank] for rank in range(self.size)]

    def _running(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self.results]

    def _receive(self, rank: int) -> Problem | None:
        """Take what a rank sends: where it is, its result, or a problem, after which it ends."""
        try:
            said = self.connections[rank].recv()
        except (EOFError, OSError):
            said = _failed(f"rank {rank} ended without a result", rank)
        if isinstance(said, Problem):
            self.processes[rank].join(END_S)
            return self._killed() or said
        if isinstance(said, tuple):
            self.entered[rank] = said
        else:
            self.results[rank] = said
        return None

    def _killed(self) -> Problem | None:
        """A rank that a signal ended, from which errors of the others may follow."""
        for rank, process in enumerate(self.processes):
            if (process.exitcode or 0) < 0:
                name = signal.Signals(-process.exitcode).name
                return _failed(f"rank {rank} ended with {name}", rank)
        return None

    def _places(self) -> tuple[list[int], list[str]]:
        """The ranks that others wait for, and in words where those without a result are, and
        which cannot go on.
        """
        running = [rank for rank in self._running() if self.processes[rank].exitcode is None]
        states = {rank: STATES.get(processes.state(self.processes[rank].pid)) for rank in running}
        behind, where = late(self.entered, running) if running else ([], "")
        return behind, [where] + [f"rank {rank} {state}" for rank, state in states.items() if state]

    def _kill(self) -> list[str]:
        """End all ranks; the ones that cannot be ended."""
        for process in self.processes:
            process.kill()  # also a stopped one, which SIGTERM does not end
        for process in self.processes:
            process.join(KILL_S)
        return [
            f"rank {rank} cannot be killed"
            for rank, each in enumerate(self.processes)
            if each.exitcode is None
        ]


def late(entered: Sequence[tuple[int, str]], running: Collection[int]) -> tuple[list[int], str]:
    """The `running` ranks that did not arrive where the others wait, and words; "" if no rank
    has begun.
    """
    last, name = max(entered)
    behind = [rank for rank in running if entered[rank][0] < last]
    if not behind:
        return [], f"no rank has passed {name}" if last and len(running) == len(entered) else ""
    waiting = sum(count == last for count, _ in entered)
    ranks = f"rank{'s' * (len(behind) > 1)} {', '.join(map(str, behind))}"
    return behind, f"{ranks} did not arrive at {name}, where {waiting} of {len(entered)} ranks wait"


def _failed(reason: str, *ranks: int) -> Problem:
    return Problem(INCOMPLETE, "check-failed", reason, [f"rank {rank}" for rank in ranks])


def _rank(rank: int, size: int, folder: Path, connection, plan: Plan, program, options) -> None:
    try:
        connection.send((1, "the start of the process group"))
        if plan.device == "cpu":
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // size))
        store = dist.FileStore(str(folder / "store"), size)
        context = join(
            store, rank, size, rank, plan.device, timeout_s(plan), inject=plan.inject,
            entered=1, world=connection,
        )  # fmt: skip
        store.set_timeout(datetime.timedelta(seconds=store_timeout_s(plan)))
        context.enter("the start of its program")
        result = program(context, **options)
        context.enter("the end of its program")
        connection.send(result)
        with contextlib.suppress(EOFError):
            connection.recv()  # none of them ends while another one still needs it
        process_group.destroy()
    except Exception as error:  # any error is the reason of the check
        lines = [line.strip() for line in words_of(error).splitlines() if line.strip()]
        verdict, kind = kind_of(error)
        name = f"rank {rank}"
        connection.send(Problem(verdict, kind, f"{name}: {lines[-1]}", [name]))
        sys.exit(1)
