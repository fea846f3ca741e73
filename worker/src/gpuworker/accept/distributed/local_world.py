"""World of ranks on this node: one process per GPU, or a few on the CPU, which run one program
after the other.

The ranks are forked from the check's process, which has imported torch and has not used a GPU yet.
torchrun would import torch twice in a row, several seconds per check. Across nodes ddp-tests runs
the same programs under torchrun. Checks that share a process share the world: NCCL and the contexts
on the GPUs take seconds to start.
"""

from __future__ import annotations

import dataclasses
import datetime
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from gpuworker.accept.check_spec import Plan
from gpuworker.accept.distributed.progress import Progress, late
from gpuworker.accept.distributed.rank_context import join
from gpuworker.accept.errors import BrokenWorldError, kind_of, words_of
from gpuworker.accept.kernels import timing
from gpuworker.judgement.report import INCOMPLETE, Problem
from gpuworker.runtime import process_group, processes

STORE_S = 60.0  # most that a rank waits for another one without a collective
# healthy ones take seconds at most; ranks of a rehearsal share cores
COLLECTIVE_S = {"cuda": 20.0, "cpu": 60.0}
END_S = 10  # in which a rank without a job ends
KILL_S = 2.0  # a killed process is gone in milliseconds, unless it waits in the kernel for a driver
FAILED = 1  # exit code of a rank that has sent its error
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
    """Seconds of one collective of a world, which may be shared with checks that have less time."""
    return min(COLLECTIVE_S[plan.device], plan.deadline_s / 2)


def hang_s(plan: Plan) -> float:
    """Seconds after which ranks without a result are named: before the check itself is ended,
    which names none.
    """
    return plan.deadline_s - min(10, 0.2 * plan.deadline_s)


@dataclass(frozen=True)
class Job:
    """A program for all ranks. `folder`: where they record their progress."""

    plan: Plan
    program: Callable[..., dict]
    options: dict
    folder: Path


_shared: World | None = None  # the world that the last check left for the next one


def run(plan: Plan, program: Callable[..., dict], **options: object) -> list[dict]:
    """Results of `program(context, **options)` by rank. Raises BrokenWorldError, which names the
    rank that ended.
    """
    global _shared
    with tempfile.TemporaryDirectory(dir=plan.scratch, prefix="job-") as folder:
        job = Job(plan, program, options, Path(folder))
        world, _shared = _shared, None
        if world:
            world.give(job)
        else:
            world = World(job)
        results = world.results(job)
    if plan.shared:
        _shared = world
    else:
        world.close()
    return results


class World:
    """Processes that wait for jobs. An error ends them all."""

    def __init__(self, job: Job) -> None:
        self.size = job.plan.gpus if job.plan.device == "cuda" else job.plan.processes
        self.folder = tempfile.TemporaryDirectory(
            dir=job.plan.shared or job.plan.scratch, prefix="world-"
        )
        self.connections, self.processes = [], []
        context = multiprocessing.get_context("fork")
        for rank in range(self.size):
            mine, its = context.Pipe()
            arguments = rank, self.size, Path(self.folder.name) / "store", its, job
            self.processes.append(context.Process(target=_rank, args=arguments))
            self.processes[-1].start()
            its.close()  # so that its end is seen even in the middle of a result
            self.connections.append(mine)

    def give(self, job: Job | None) -> None:
        for connection in self.connections:
            connection.send(job)

    def results(self, job: Job) -> list[dict]:
        found: dict[int, dict] = {}
        problem, end = None, time.monotonic() + hang_s(job.plan)
        while len(found) < self.size and not problem:
            waiting = {
                self.connections[rank]: rank for rank in range(self.size) if rank not in found
            }
            ends = [process.sentinel for process in self.processes]
            ready = multiprocessing.connection.wait(
                [*waiting, *ends], max(0, end - time.monotonic())
            )
            for each in waiting.keys() & ready:
                found[waiting[each]] = self._answer(waiting[each])
            problem = (
                self._problem(found)
                if ready
                else _failed(f"no result after {hang_s(job.plan):g} s")
            )
        if problem:
            late_ranks, places = self._places(job, found)
            if late_ranks and problem.kind == "check-failed" and not problem.parts:
                problem.kind, problem.parts = "not-arrived", [f"rank {rank}" for rank in late_ranks]
            reasons = "; ".join(filter(None, [problem.reason, *places, *self._kill()]))
            raise BrokenWorldError(dataclasses.replace(problem, reason=reasons))
        return [found[rank]["result"] for rank in range(self.size)]

    def _answer(self, rank: int) -> dict:
        """What a rank sent. One that sent an error or nothing is about to end."""
        try:
            answer = self.connections[rank].recv()
        except (EOFError, OSError):
            answer = {"error": "ended without a result"}
        if "error" in answer:
            self.processes[rank].join(END_S)
        return answer

    def _problem(self, found: dict[int, dict]) -> Problem | None:
        """The rank that ended, rather by a signal than by an error, which may follow from the
        end of another rank.
        """
        ended = {
            rank: process.exitcode
            for rank, process in enumerate(self.processes)
            if process.exitcode is not None
        }
        for rank, code in ended.items():
            if code < 0:
                return _failed(f"rank {rank} ended with {signal.Signals(-code).name}", rank)
        for rank, answer in found.items():
            if "error" in answer and ended.get(rank) in (FAILED, None):
                verdict, kind = answer.get("kind", (INCOMPLETE, "check-failed"))
                return Problem(verdict, kind, f"rank {rank}: {answer['error']}", [f"rank {rank}"])
        return next(
            (
                _failed(f"rank {rank} ended with exit code {code}", rank)
                for rank, code in ended.items()
            ),
            None,
        )

    def _places(self, job: Job, found: dict[int, dict]) -> tuple[list[int], list[str]]:
        """The ranks that others wait for, and in words where those without a result are, and
        which cannot go on.
        """
        running = [
            rank
            for rank in range(self.size)
            if rank not in found and self.processes[rank].exitcode is None
        ]
        states = {rank: STATES.get(processes.state(self.processes[rank].pid)) for rank in running}
        behind, where = late(job.folder, self.size, running) if running else ([], "")
        return behind, [where] + [f"rank {rank} {state}" for rank, state in states.items() if state]

    def _kill(self) -> list[str]:
        """End all ranks; the ones that cannot be ended."""
        for process in self.processes:
            process.kill()  # also a stopped one, which SIGTERM does not end
        for process in self.processes:
            process.join(KILL_S)
        left = [
            f"rank {rank} cannot be killed"
            for rank, each in enumerate(self.processes)
            if each.exitcode is None
        ]
        self._forget()
        return left

    def close(self) -> None:
        self.give(None)
        for process in self.processes:
            process.join(END_S)
        self._forget()

    def _forget(self) -> None:
        for connection in self.connections:
            connection.close()
        self.folder.cleanup()


def _failed(reason: str, *ranks: int) -> Problem:
    return Problem(INCOMPLETE, "check-failed", reason, [f"rank {rank}" for rank in ranks])


def _rank(
    rank: int,
    size: int,
    store_path: Path,
    connection: multiprocessing.connection.Connection,
    job: Job,
) -> None:
    try:
        progress = Progress(job.folder, rank)
        progress.enter("the start of the process group")
        if job.plan.device == "cpu":
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // size))
        # Deterministic products of one check need it before the first product of another one.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        store = dist.FileStore(str(store_path), size)
        context = join(store, rank, size, rank, job.plan.device, timeout_s(job.plan))
        number = 0
        while job:
            number += 1
            store.set_timeout(datetime.timedelta(seconds=store_timeout_s(job.plan)))
            prefixed = dist.PrefixStore(str(number), context.store)
            its_context = dataclasses.replace(
                context, store=prefixed, inject=job.plan.inject, progress=progress
            )
            its_context.enter("the start of its program")
            result = job.program(its_context, **job.options)
            its_context.enter("the end of its program")
            connection.send({"result": result})
            del its_context, result
            timing.free_memory()
            job = connection.recv()
            progress = Progress(job.folder, rank) if job else progress
        process_group.destroy()
    except Exception as error:  # any error is the reason of the check
        lines = [line.strip() for line in words_of(error).splitlines() if line.strip()]
        connection.send({"error": lines[-1], "kind": kind_of(error)})
        sys.exit(FAILED)
