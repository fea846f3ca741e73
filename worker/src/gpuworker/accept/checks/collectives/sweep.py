"""Sweep over collectives and message sizes that verifies every element of every round.

Bus bandwidth in GB/s (1e9 bytes) = bytes / time × factor; time = the slowest rank of each round,
median over rounds.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist

from gpuworker.accept.checks.collectives import REDUCED
from gpuworker.accept.checks.collectives.operations import (
    NAMES,
    UNSUPPORTED,
    Operation,
    factor,
    operations,
)
from gpuworker.accept.distributed.rank_context import RankContext
from gpuworker.judgement.check_spec import Plan
from gpuworker.judgement.limits import Limits
from gpuworker.judgement.report import Evidence
from gpuworker.runtime import process_group

WARM_UP, ROUNDS = {"cuda": 5, "cpu": 2}, {"cuda": 20, "cpu": 5}
# Bytes of messages, as powers of two. The largest is judged: small ones show latency.
QUICK = {"cuda": (20, 26, 30), "cpu": (12, 16, 20)}
ALL = {"cuda": range(10, 33), "cpu": range(10, 25, 2)}
# bytes of memory per byte of a message: tensors, their expected values and intermediate results
PEAK = 10


def run(context: RankContext, plan: Plan) -> dict:
    """Seconds of every timed round and wrong elements of every round, per collective and size in
    bytes.

    The sweep repeats until the time of a burn-in has passed on rank 0.
    """
    start, curves, wrong, senders = time.monotonic(), {}, [], set()
    sizes, unsupported = fitting(context, sizes_of(plan)), {}
    while True:
        for size in sizes:
            for operation in operations(context, max(1, size // 4)):
                if operation.name in unsupported:
                    continue
                try:
                    rounds, warm_up = ROUNDS[plan.device], WARM_UP[plan.device]
                    times, errors, by = trial(context, operation, rounds, warm_up)
                except (RuntimeError, NotImplementedError) as error:
                    lacks = any(text in str(error) for text in UNSUPPORTED)
                    if plan.device == "cuda" or not lacks:
                        raise
                    unsupported[operation.name] = f"{dist.get_backend()} has no {operation.name}"
                    continue
                curves.setdefault(operation.name, {})[str(operation.bytes)] = times
                wrong += errors
                senders |= by
            del operation  # and its tensors, before those of the next size are made
        burns = plan.level == "burn-in" and time.monotonic() - start < plan.seconds
        if not context.share(burns):
            break
    return {
        "label": context.label, "model": context.gpu_model, "curves": curves, "wrong": wrong[:20],
        "senders": sorted(senders), "unsupported": unsupported,
    }  # fmt: skip


def sizes_of(plan: Plan) -> list[int]:
    powers = (QUICK if plan.level == "quick" else ALL)[plan.device]
    return [1 << power for power in powers]


def fitting(context: RankContext, sizes: list[int]) -> list[int]:
    """The sizes that fit the free memory of every GPU; the same on all ranks."""
    if context.device.type == "cpu":
        return sizes
    free = context.gather("free memory", torch.cuda.mem_get_info(context.device)[0])
    return context.share([size for size in sizes if size * PEAK <= min(free, default=0)])


def trial(
    context: RankContext, operation: Operation, rounds: int, warm_up: int
) -> tuple[list[float], list[str], set[int]]:
    """Seconds of each timed round on this rank, the errors of all rounds as texts, and the ranks
    that sent them.
    """
    times, errors, senders = [], [], set()
    for number in range(warm_up + rounds):
        operation.fill(number)
        context.synchronize()
        context.enter(f"{operation.name} of {operation.bytes} bytes, round {number}")
        # otherwise the skew between ranks is counted as time of the collective
        process_group.barrier(context.device)
        clock = _Clock(context.device)
        operation.call()
        times.append(clock.seconds())
        output, expected = operation.output, operation.expected(number)
        if context.injected("wrong-element"):
            output.view(torch.int32)[-1] ^= 1 << 20
        where = (output != expected).nonzero().flatten()  # NaN differs too
        if len(where):
            first, last = int(where[0]), int(where[-1])
            senders |= {operation.sender(element) for element in (first, last)} - {None}
            seen, right = (words[first].item() for words in (output, expected))
            errors.append(
                f"{operation.name} of {operation.bytes} bytes, round {number}: {len(where)} of "
                f"{len(output)} elements are wrong; the first is element {first}: {seen:g} "
                f"instead of {right:g}"
            )
    return times[warm_up:], errors, senders


class _Clock:
    """Seconds from now to the end of the queued work: by CUDA events on the stream, on the CPU
    by the clock.
    """

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        if self.cuda:
            self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.begin.record()
        else:
            self.start = time.perf_counter()

    def seconds(self) -> float:
        if not self.cuda:
            return time.perf_counter() - self.start
        self.end.record()
        self.end.synchronize()
        return self.begin.elapsed_time(self.end) / 1e3


def evidence(results: list[dict], plan: Plan, nodes: int) -> Evidence:
    """Evidence at the largest size."""
    size, found = len(results), Evidence()
    _wrong(results, found)
    curves = {}
    for name in NAMES:
        measure = f"{name}_busbw"
        unsupported = [r["unsupported"][name] for r in results if name in r["unsupported"]]
        if unsupported or size == 1:
            found.inapplicable[measure] = (unsupported or ["one process has no peer"])[0]
        elif all(name in result["curves"] for result in results):
            points, own = [], [result["curves"][name] for result in results]
            for bytes_ in sorted(map(int, own[0])):
                rounds = zip(*(times[str(bytes_)] for times in own), strict=True)
                slowest = [max(times) for times in rounds]
                rate = bytes_ / statistics.median(slowest) * factor(name, size) / 1e9
                points.append([bytes_, rate])
            found.add_number(measure, rate, "GB/s")
            curves[measure] = points
    found.facts = {"ranks": size, "nodes": nodes, "curves": curves}
    models = tuple(result["model"] for result in results)
    nvlink = Limits(models).figures("nvlink_oneway") if models[0] else {}
    _add_ceilings(found, nvlink, plan.nic_gbps, size, nodes)
    return found


def _wrong(results: list[dict], found: Evidence) -> None:
    """Add wrong elements, as a fault of the rank that sent all with a known sender, if several
    ranks received them.

    A sum of all ranks has no sender. Of one receiver and one sender either may be at fault.
    """
    senders = {rank for result in results for rank in result["senders"]}
    sender = results[min(senders)] if len(senders) == 1 else None
    receivers = [result for result in results if result["senders"] and result is not sender]
    if sender and len(receivers) > 1:
        where = f"{len(receivers)} of {len(results) - 1} other ranks"
        words = (
            f"{sender['label']}: what it sent arrived wrong at {where}: {receivers[0]['wrong'][0]}"
        )
        found.fail("wrong-sender", words, f"rank {min(senders)}")
        return
    for rank, result in enumerate(results):
        for fault in result["wrong"][:3]:
            found.fail("wrong-elements", f"{result['label']}: {fault}", f"rank {rank}")


def _add_ceilings(
    found: Evidence, nvlink: dict, nic_gbps: float | None, size: int, nodes: int
) -> None:
    """Ceilings of the links: one-way NVLink within a node; across nodes a ring also passes every
    NIC of a node once.

    All-to-all across nodes: b·(n-1)/(n-g) for n ranks, g GPUs per node and b GB/s for the NIC of
    each: only the share (n-g)/(n-1) of a rank's data leaves its node.
    """
    known, per_node = [], size // nodes
    if nvlink:
        known.append((nvlink["specification"], f"one-way NVLink of {nvlink['model']}"))
    if nodes > 1:
        if nic_gbps is None:
            return
        cards = f"{per_node} NICs of {nic_gbps:g} GB/s per node"
        known.append((nic_gbps * per_node, cards))
        found.ceilings["all_to_all_busbw"] = nic_gbps * (size - 1) / (size - per_node), cards
    if known:
        found.ceilings |= {f"{name}_busbw": min(known) for name in REDUCED}
