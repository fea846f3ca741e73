"""One test of the bad-node search: two nodes exchange data, all of it checked, each rank with the
rank of the same index on the other node.
"""

from __future__ import annotations

import datetime
import os
import statistics
import threading
import time
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist

from gpuworker.accept.checks.bad_nodes.plan import Pair
from gpuworker.accept.distributed.rank_context import RankContext
from gpuworker.runtime.process_group import keep_alive

TIMED_OUT, BROKEN, WRONG = "timed out", "connection broken", "wrong data"


@dataclass
class PairTest:
    """`units[u]`: the ranks of node u in the order of their local rank."""

    context: RankContext
    units: list[list[int]]
    numel: int
    repeats: int
    timeout_s: float
    link: Pair = ()  # ends of the injected fault slow-node-link

    def run(self, pair: Pair, number: int) -> float | str:
        """Seconds of an exchange of this rank, or a fault.

        In a thread: a call that never returns must not hang the leader.
        """
        device, found = self.context.device, [TIMED_OUT]

        def test() -> None:
            try:
                with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                    found[0] = self._test(pair, f"bad_nodes/group/{number}/{pair[0]}")
            except RuntimeError as error:  # torch raises it for timeouts and for lost connections
                text = str(error).lower()
                found[0] = TIMED_OUT if "timed out" in text or "timeout" in text else BROKEN

        thread = threading.Thread(target=test, daemon=True)
        thread.start()
        thread.join(2 * self.timeout_s)
        return found[0]

    def is_in(self, unit: int) -> bool:
        return self.context.rank in self.units[unit]

    def _test(self, pair: Pair, name: str) -> float | str:
        context, device = self.context, self.context.device
        here, other = sorted(pair, key=self.is_in, reverse=True)
        ranks = [rank for unit in pair for rank in self.units[unit]]
        group = self._group(ranks, name)
        partner = self.units[other][self.units[here].index(context.rank)]
        split = [self.numel * (rank == partner) for rank in ranks]
        ramp = (torch.arange(self.numel, device=device) % 61).float()
        mine = keep_alive(_pattern(ramp, context.rank))
        if context.injected("corrupt-node"):
            mine.view(torch.int32)[self.numel // 2] ^= 1 << 20
        received = keep_alive(torch.empty_like(mine))
        slow = context.injected("slow-node")
        if context.inject == "slow-node-link":
            slow = pair == self.link
        times, wrong = [], False
        for _ in range(self.repeats + 1):  # the first one connects the two
            received.fill_(-1)
            context.synchronize()
            group.barrier().wait()
            context.synchronize()
            start = time.perf_counter()
            if slow:
                time.sleep(0.4)
            group.alltoall_base(received, mine, split, split).wait()
            context.synchronize()
            times.append(time.perf_counter() - start)
            wrong |= not torch.equal(received, _pattern(ramp, partner))
        if device.type == "cuda":
            shut_down(group)
        return WRONG if wrong else statistics.median(times[1:])

    def _group(self, ranks: list[int], name: str) -> dist.ProcessGroup:
        """A process group of these ranks. dist.new_group would need the same calls on all other
        ranks.
        """
        timeout = datetime.timedelta(seconds=self.timeout_s)
        store, rank = dist.PrefixStore(name, self.context.store), ranks.index(self.context.rank)
        if self.context.device.type == "cpu":
            return dist.ProcessGroupGloo(store, rank, len(ranks), timeout)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        # Else NCCL waits without end for a node that hangs before it has connected.
        options.config.blocking = 0
        os.environ["TORCH_NCCL_NONBLOCKING_TIMEOUT"] = str(int(self.timeout_s))
        return dist.ProcessGroupNCCL(store, rank, len(ranks), options)


def _pattern(ramp: torch.Tensor, rank: int) -> torch.Tensor:
    """As in collectives/operations.py: depends on the rank and the position."""
    return (rank % 7 + 1) * ramp + rank % 1009


def shut_down(group: dist.ProcessGroup) -> None:
    """Free the communicators of a group. Before torch 2.7 the method of NCCL's groups has a
    private name.
    """
    (getattr(group, "shutdown", None) or group._shutdown)()


def outcome(
    posts: Collection[float | str | None], gigabytes: float, least_s: float = 0.0
) -> float | str:
    """GB/s of the slowest rank, or a fault. None: a rank that posted nothing in time.

    `gigabytes`: data of one exchange of a rank, which takes `least_s` at least.
    """
    found = [TIMED_OUT if post is None else post for post in posts]
    faults = [post for post in found if isinstance(post, str)]
    return faults[0] if faults else gigabytes / max(*found, least_s)
