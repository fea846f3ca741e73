"""World of ranks on this node: one process per GPU, or a few on the CPU, which run one program after the other.

The ranks are forked from the check's process, which has imported torch and has not used a GPU yet. torchrun would
import torch twice in a row, several seconds per check. Across nodes ddp-tests runs the same programs under torchrun.
Checks that share a process share the world: NCCL and the contexts on the GPUs take seconds to start.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import multiprocessing.connection
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.multiprocessing.spawn import ProcessException, ProcessExitedException

from gpuworker.accept.check_spec import Plan
from gpuworker.accept.distributed.progress import Progress, late
from gpuworker.accept.distributed.rank_context import RankContext, join
from gpuworker.accept.kernels import timing
from gpuworker.runtime import process_group

STORE_S = 60.0  # most that a rank waits for another one without a collective
COLLECTIVE_S = {"cuda": 20.0, "cpu": 60.0}  # healthy ones take seconds at most; ranks of a rehearsal share cores
END_S = 10


def store_timeout_s(plan: Plan) -> float:
    """So few seconds that a hang is reported by the ranks before the check itself is ended."""
    return min(STORE_S, plan.deadline_s / 2)


def timeout_s(plan: Plan) -> float:
    """Seconds of one collective of a world, which may be shared with checks that have less time."""
    return min(COLLECTIVE_S[plan.device], plan.deadline_s / 2)


class BrokenWorldError(RuntimeError):
    """A rank ended before it returned its result."""


@dataclass(frozen=True)
class Job:
    """A program for all ranks. `folder`: where they record their progress."""

    plan: Plan
    program: Callable[..., dict]
    options: dict
    folder: Path


_shared: World | None = None  # the world that the last check left for the next one


def run(plan: Plan, program: Callable[..., dict], **options: object) -> list[dict]:
    """Results of `program(context, **options)` by rank. Raises BrokenWorldError, which names the rank that ended."""
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
        self.folder = tempfile.TemporaryDirectory(dir=job.plan.shared or job.plan.scratch, prefix="world-")
        pipes = [multiprocessing.connection.Pipe() for _ in range(self.size)]
        self.connections = [mine for mine, _ in pipes]
        arguments = (Path(self.folder.name) / "store", [theirs for _, theirs in pipes], job)
        self.processes = torch.multiprocessing.start_processes(
            _rank, arguments, nprocs=self.size, join=False, start_method="fork"
        )

    def give(self, job: Job | None) -> None:
        for connection in self.connections:
            connection.send(job)

    def results(self, job: Job) -> list[dict]:
        found: dict[int, dict] = {}
        try:
            while len(found) < self.size:
                waiting = {self.connections[rank]: rank for rank in range(self.size) if rank not in found}
                ready = multiprocessing.connection.wait([*waiting, *self.processes.sentinels])
                found |= {waiting[each]: json.loads(each.recv()) for each in ready if each in waiting}
                if not any(each in waiting for each in ready) and self.processes.join(timeout=0):
                    raise BrokenWorldError("all ranks ended without a result")
        except ProcessException as error:
            reasons = [_cause(error), late(job.folder, self.size)]
            self._forget()
            raise BrokenWorldError("; ".join(filter(None, reasons))) from error
        return [found[rank] for rank in range(self.size)]

    def close(self) -> None:
        self.give(None)
        for process in self.processes.processes:
            process.join(END_S)
        self._forget()

    def _forget(self) -> None:
        for connection in self.connections:
            connection.close()
        self.folder.cleanup()


def _rank(rank: int, store_path: Path, connections: list, job: Job) -> None:
    plan, size = job.plan, len(connections)
    if plan.device == "cpu":
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // size))
    # Deterministic products of one check need it before the first product of another one.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    store = dist.FileStore(str(store_path), size)
    context: RankContext = join(store, rank, size, rank, plan.device, timeout_s(plan))
    number = 0
    while job:
        number += 1
        store.set_timeout(datetime.timedelta(seconds=store_timeout_s(job.plan)))
        its_context = dataclasses.replace(
            context,
            store=dist.PrefixStore(str(number), context.store),
            inject=job.plan.inject,
            progress=Progress(job.folder, rank),
        )
        connections[rank].send(json.dumps(job.program(its_context, **job.options)))
        del its_context
        timing.free_memory()
        job = connections[rank].recv()
    process_group.destroy()


def _cause(error: ProcessException) -> str:
    """The rank and the last line of its traceback."""
    if isinstance(error, ProcessExitedException):
        how = error.signal_name or f"exit code {error.exit_code}"
        return f"rank {error.error_index} ended with {how}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"rank {error.error_index}: {lines[-1]}"
