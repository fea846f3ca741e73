"""Collectives under test: the input of each rank, and the expected value of every element.

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
NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")


def factor(name: str, size: int) -> float:
    """Bus bandwidth = bytes / time × factor for n ranks (NVIDIA nccl-tests, doc/PERFORMANCE.md)."""
    if name == "all_reduce":
        return 2 * (size - 1) / size
    return 1.0 if name in ("broadcast", "send_recv") else (size - 1) / size


def line(rank: int | torch.Tensor) -> tuple:
    """a and b of a rank, or of several."""
    return rank % 7 + 1, rank % 1009


@dataclass(frozen=True)
class Operation:
    """One collective on float32 tensors of `bytes` bytes, the size as defined by nccl-tests.

    The output is what each of `senders` has in `elements`, one after the other, or their `sum`.
    A rank that is not among the senders only receives.
    """

    name: str
    bytes: int
    rank: int
    input: torch.Tensor
    output: torch.Tensor
    senders: range
    elements: slice
    call: Callable[[], object]
    sum: bool = False

    def _pattern(self, round_: int) -> torch.Tensor:
        position = torch.arange(self.bytes // 4, dtype=torch.int32, device=self.output.device)
        return position.add_(round_).remainder_(61).float()

    def fill(self, round_: int) -> None:
        """Write the input of a round."""
        a, b = line(self.rank)
        self.output.fill_(-1)
        if self.rank in self.senders or self.input is not self.output:
            self.input.copy_(self._pattern(round_)[: self.input.numel()].mul_(a).add_(b))

    def expected(self, round_: int) -> torch.Tensor:
        """The correct output of a round."""
        a, b = line(torch.tensor(self.senders, device=self.output.device)[:, None])
        if self.sum:
            a, b = a.sum(0), b.sum(0)
        return (a * self._pattern(round_)[self.elements] + b).flatten()

    def sender(self, element: int) -> int | None:
        """The rank that sent an element of the output; None: all together."""
        return None if self.sum else self.senders[element * len(self.senders) // len(self.output)]


def operations(context: RankContext, numel: int) -> list[Operation]:
    """All collectives on at least `numel` elements, rounded up to equal parts per rank."""
    size, rank, device = context.size, context.rank, context.device
    part = -(-numel // size)
    whole, other = (torch.empty(part * size, device=device) for _ in range(2))
    keep_alive(whole, other)
    short, everything, mine = other[:part], slice(None), slice(rank * part, (rank + 1) * part)
    all_, before, after = range(size), (rank - 1) % size, (rank + 1) % size

    def exchange() -> None:
        sent = dist.P2POp(dist.isend, whole, after), dist.P2POp(dist.irecv, other, before)
        for work in dist.batch_isend_irecv(list(sent)):
            work.wait()

    def operation(name: str, *its: object, **more: bool) -> Operation:
        return Operation(name, 4 * part * size, rank, *its, **more)

    found = [
        operation("all_reduce", whole, whole, all_, everything,
                  lambda: dist.all_reduce(whole), sum=True),
        operation("all_gather", short, whole, all_, slice(part),
                  lambda: dist.all_gather_into_tensor(whole, short)),
        operation("reduce_scatter", whole, short, all_, mine,
                  lambda: dist.reduce_scatter_tensor(short, whole), sum=True),
        operation("all_to_all", whole, other, all_, mine,
                  lambda: dist.all_to_all_single(other, whole)),
        operation("broadcast", whole, whole, range(1), everything,
                  lambda: dist.broadcast(whole, 0)),
        operation("send_recv", whole, other, range(before, before + 1), everything, exchange),
    ]  # fmt: skip
    return [each for each in found if size > 1 or each.name != "send_recv"]
