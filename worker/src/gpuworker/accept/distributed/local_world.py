"""World of ranks on this node: one process per GPU, or a few on the CPU.

The ranks are forked from the check's process, which has imported torch and has not used a GPU yet. torchrun would
import torch twice in a row, several seconds per check. Across nodes ddp-tests runs the same programs under torchrun.
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

from gpuworker.accept.check_spec import Plan
from gpuworker.accept.distributed.progress import Progress, late
from gpuworker.accept.distributed.rank_context import RankContext, join
from gpuworker.runtime import process_group

TIMEOUT_S = 60.0  # of one collective; healthy ones take seconds at most


def timeout_s(plan: Plan) -> float:
    """Seconds of one collective: so few that a hang is reported by the ranks before the check itself is ended."""
    return min(TIMEOUT_S, plan.deadline_s / 2)


class BrokenWorldError(RuntimeError):
    """A rank ended before it returned its result."""


def run(plan: Plan, program: Callable[..., dict], **options: object) -> list[dict]:
    """Results of `program(context, **options)` by rank. Raises BrokenWorldError, which names the rank that ended."""
    size = plan.gpus if plan.device == "cuda" else plan.processes
    with tempfile.TemporaryDirectory(dir=plan.scratch, prefix="world-") as folder:
        arguments = (Path(folder), size, plan, program, options)
        try:
            torch.multiprocessing.start_processes(_rank, arguments, nprocs=size, start_method="fork")
        except ProcessException as error:
            reasons = [_cause(error), late(Path(folder), size)]
            raise BrokenWorldError("; ".join(filter(None, reasons))) from error
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(size)]


def _rank(rank: int, folder: Path, size: int, plan: Plan, program: Callable[..., dict], options: dict) -> None:
    if plan.device == "cpu":
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // size))
    store = dist.FileStore(str(folder / "store"), size)
    context: RankContext = join(store, rank, size, rank, plan.device, timeout_s(plan), inject=plan.inject)
    context.progress = Progress(folder, rank)
    result = program(context, **options)
    (folder / f"{rank}.json").write_text(json.dumps(result))
    process_group.destroy()


def _cause(error: ProcessException) -> str:
    """The rank and the last line of its traceback."""
    if isinstance(error, ProcessExitedException):
        how = error.signal_name or f"exit code {error.exit_code}"
        return f"rank {error.error_index} ended with {how}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"rank {error.error_index}: {lines[-1]}"
