"""Collectives under test: the input of each rank, and the expected value of every element of the result.

Element i of rank r in round k is a_r·p_i + b_r with p_i = (i + k) mod 61, a_r = r mod 7 + 1, b_r =
r mod 1009. It depends on rank, position and round, so data of another rank, position or round is
detected. Sums over all ranks stay below 2^24 up to 18,000 ranks, so float32 represents them
exactly, in any order of addition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from gpuworker.accept.distributed.rank_context import RankContext
from gpuworker.runtime.process_group import keep_alive

UNSUPPORTED = ("not support", "not implemented")  # in Gloo's errors for collectives that it lacks


@dataclass(frozen=True)
class Operation:
    """One collective on tensors of `bytes` bytes, the size as defined by NVIDIA nccl-tests
    (doc/PERFORMANCE.md).
    """

    name: str
    bytes: int
    fill: Callable[[int], None]  # the input of round k
    call: Callable[[], object]
    output: torch.Tensor
    # the correct output of round k, in the shape of `output`
    expected: Callable[[int], torch.Tensor]
    input: torch.Tensor  # what this rank sends
    # the rank that sent an element of the output; None: all together
    sender: Callable[[int], int] | None = None


def factor(name: str, size: int) -> float:
    """Bus bandwidth = bytes / time × factor for n ranks (NVIDIA nccl-tests, doc/PERFORMANCE.md)."""
    if name == "all_reduce":
        return 2 * (size - 1) / size
    return 1.0 if name in ("broadcast", "send_recv") else (size - 1) / size


def operations(context: RankContext, numel: int) -> list[Operation]:
    """All collectives on float32 tensors of at least `numel` elements, rounded up to equal parts
    per rank.
    """
    size, rank, device = context.size, context.rank, context.device
    part = -(-numel // size)
    numel = part * size
    position = torch.arange(numel, dtype=torch.int32, device=device)
    ranks = torch.arange(size, device=device)
    a, b = (ranks % 7 + 1).float(), (ranks % 1009).float()
    whole, other = torch.empty(numel, device=device), torch.empty(numel, device=device)
    keep_alive(whole, other)
    mine = slice(rank * part, (rank + 1) * part)
    before, after = (rank - 1) % size, (rank + 1) % size
    root = 0

    def pattern(round_: int) -> torch.Tensor:
        return ((position + round_) % 61).float()

    def fill(round_: int, tensor: torch.Tensor, clear: torch.Tensor | None = None) -> None:
        tensor.copy_(a[rank] * pattern(round_)[: tensor.numel()] + b[rank])
        if clear is not None:
            clear.fill_(-1)

    def fill_broadcast(round_: int) -> None:
        fill(round_, whole) if rank == root else whole.fill_(-1)

    def exchange() -> None:
        sent = dist.P2POp(dist.isend, whole, after), dist.P2POp(dist.irecv, other, before)
        for work in dist.batch_isend_irecv(list(sent)):
            work.wait()

    found = [
        Operation(
            "all_reduce", numel * 4, lambda k: fill(k, whole), lambda: dist.all_reduce(whole), whole,
            lambda k: a.sum() * pattern(k) + b.sum(), whole,
        ),
        Operation(
            "all_gather", numel * 4, lambda k: fill(k, other[:part], whole),
            lambda: dist.all_gather_into_tensor(whole, other[:part]), whole,
            lambda k: (a[:, None] * pattern(k)[:part] + b[:, None]).flatten(), other[:part], lambda i: i // part,
        ),
        Operation(
            "reduce_scatter", numel * 4, lambda k: fill(k, whole, other[:part]),
            lambda: dist.reduce_scatter_tensor(other[:part], whole), other[:part],
            lambda k: a.sum() * pattern(k)[mine] + b.sum(), whole,
        ),
        Operation(
            "all_to_all", numel * 4, lambda k: fill(k, whole, other), lambda: dist.all_to_all_single(other, whole),
            other, lambda k: (a[:, None] * pattern(k)[mine] + b[:, None]).flatten(), whole, lambda i: i // part,
        ),
        Operation(
            "broadcast", numel * 4, fill_broadcast, lambda: dist.broadcast(whole, root), whole,
            lambda k: a[root] * pattern(k) + b[root], whole, lambda _: root,
        ),
        Operation(
            "send_recv", numel * 4, lambda k: fill(k, whole, other), exchange, other,
            lambda k: a[before] * pattern(k) + b[before], whole, lambda _: before,
        ),
    ]  # fmt: skip
    return [operation for operation in found if size > 1 or operation.name != "send_recv"]


NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
