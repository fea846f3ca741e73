"""A world on this node alone: one process a GPU, or a few on the CPU.

The ranks are forked from the check, which has torch but has not touched a GPU yet: torchrun would import torch twice
in a row, several seconds for each check. Across nodes ddp-tests runs the same programs under torchrun.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.multiprocessing.spawn import ProcessException, ProcessExitedException

from gpuworker.accept.distributed.rank_context import World, join
from gpuworker.accept.registry import Plan
from gpuworker.runtime import process_group

TIMEOUT_S = 60.0  # of one collective; healthy ones take seconds at most


class BrokenWorldError(RuntimeError):
    """A rank ended before its time."""


def run(plan: Plan, program: Callable[..., dict], **options: object) -> list[dict]:
    """What `program(world, **options)` gave on every rank, by rank. BrokenWorldError names the rank that died."""
    size = plan.gpus if plan.device == "cuda" else plan.processes
    with tempfile.TemporaryDirectory(dir=plan.scratch, prefix="world-") as folder:
        arguments = (Path(folder), size, plan, program, options)
        try:
            torch.multiprocessing.start_processes(_rank, arguments, nprocs=size, start_method="fork")
        except ProcessException as error:
            raise BrokenWorldError(_cause(error)) from error
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(size)]


def _rank(rank: int, folder: Path, size: int, plan: Plan, program: Callable[..., dict], options: dict) -> None:
    if plan.device == "cpu":
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // size))
    store = dist.FileStore(str(folder / "store"), size)
    world: World = join(store, rank, size, rank, plan.device, TIMEOUT_S, inject=plan.inject)
    result = program(world, **options)
    (folder / f"{rank}.json").write_text(json.dumps(result))
    process_group.destroy()


def _cause(error: ProcessException) -> str:
    """One line: which rank, and the last line of what it said."""
    if isinstance(error, ProcessExitedException):
        how = error.signal_name or f"exit code {error.exit_code}"
        return f"rank {error.error_index} ended with {how}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"rank {error.error_index}: {lines[-1]}"
