"""Compute time and arrival of each rank, which show the stragglers that a collective hides.

Compute time: the same work on every rank, timed by the rank. Arrival: each rank's wait in the
barrier after the work; the rank that waits least arrived last. Clocks of different ranks are not
compared. Ranks of a rehearsal share processors: their compute time is the processor time of the
process, and their best round counts.
"""

from __future__ import annotations

import time

import torch

from gpuworker.accept.distributed.rank_context import RankContext
from gpuworker.runtime import process_group

ROUNDS = 20


def run(context: RankContext, rounds: int = ROUNDS) -> dict:
    """Seconds of computing and of waiting per round on this rank."""
    size, repeats = (8192, 8) if context.device.type == "cuda" else (192, 8)
    a, b = (torch.randn(size, size, device=context.device) for _ in range(2))
    work = repeats * (4 if context.injected("slow-rank") else 1)
    compute, wait = [], []
    for number in range(rounds + 2):  # the first two warm up
        context.synchronize()
        context.enter(f"the barrier before round {number}")
        process_group.barrier(context.device)
        start = _now(context)
        for _ in range(work):
            torch.mm(a, b)
        context.synchronize()
        seconds = _now(context) - start
        if context.injected("late-rank"):
            time.sleep(0.6)  # far above LATE_S, even if other ranks are delayed
        context.enter(f"the barrier after round {number}")
        arrived = time.perf_counter()
        process_group.barrier(context.device)
        context.synchronize()
        if number >= 2:
            compute.append(seconds)
            wait.append(time.perf_counter() - arrived)
    return {
        "label": context.label,
        "device": context.device.type,
        "compute_s": compute,
        "wait_s": wait,
    }


def _now(context: RankContext) -> float:
    return time.process_time() if context.device.type == "cpu" else time.perf_counter()
