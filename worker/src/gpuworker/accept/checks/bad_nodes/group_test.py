"""One group test of the search for bad nodes: all-reduce, then every pair of nodes exchanges data, all of it checked.

Step k of s nodes: node i sends to node i+k and receives from node i-k (modulo s), each rank from the rank of the same
index on its node, so s-1 steps make every pair meet, and a slow one cannot hide among others.
"""

from __future__ import annotations

import datetime
import os
import statistics
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from gpuworker.accept.checks.bad_nodes.findings import Group, Outcome
from gpuworker.accept.distributed.rank_context import RankContext
from gpuworker.runtime.process_group import keep_alive

TIMED_OUT, BROKEN, WRONG = "timed out", "connection broken", "wrong data"
OUTLIER_FACTOR = 1.5  # of the median step, for a hint
MAX_HINTS = 8


@dataclass
class GroupTest:
    """Tests of changing groups. `units[u]`: the ranks of node u in the order of their local
    rank.
    """

    context: RankContext
    units: list[list[int]]
    numel: int
    repeats: int
    timeout_s: float
    link: Group = ()  # ends of the injected fault slow-node-link

    def run(self, members: Group, number: int) -> dict:
        """This rank's part of a test of the nodes `members`: seconds of each step, and the fault
        as text.
        """
        try:
            return self._test(members, number)
        except RuntimeError as error:  # torch raises it for timeouts and for lost connections
            text = str(error).lower()
            return {
                "steps": [],
                "fault": TIMED_OUT if "timed out" in text or "timeout" in text else BROKEN,
            }

    def _test(self, members: Group, number: int) -> dict:
        context, device = self.context, self.context.device
        ranks = [rank for unit in members for rank in self.units[unit]]
        group = self._group(ranks, f"bad_nodes/group/{number}/{members[0]}")
        here = next(index for index, unit in enumerate(members) if context.rank in self.units[unit])
        own = self.units[members[here]]
        column = own.index(context.rank)
        ramp = (torch.arange(self.numel, device=device) % 61).float()
        mine = keep_alive(self._pattern(ramp, context.rank))
        if context.injected("corrupt-node"):
            mine.view(torch.int32)[self.numel // 2] ^= 1 << 20
        wrong = False
        total = keep_alive(mine.clone())
        group.allreduce([total]).wait()
        right = sum(rank % 7 + 1 for rank in ranks) * ramp + sum(rank % 1009 for rank in ranks)
        wrong |= not torch.equal(total, right)
        received = keep_alive(torch.empty_like(mine))
        steps = []
        for step in range(1, len(members)):
            to, source = ((here + shift) % len(members) for shift in (step, -step))
            sent, expected = [0] * len(ranks), [0] * len(ranks)
            sender = self.units[members[source]][column]
            sent[ranks.index(self.units[members[to]][column])] = self.numel
            expected[ranks.index(sender)] = self.numel
            slow = self._is_slow(members[here], members[to]) or self._is_slow(
                members[here], members[source]
            )
            times = []
            for repeat in range(self.repeats + 1):  # the first one connects the two
                received.fill_(-1)
                context.synchronize()
                group.barrier().wait()
                context.synchronize()
                start = time.perf_counter()
                if slow:
                    time.sleep(0.4)
                group.alltoall_base(received, mine, expected, sent).wait()
                context.synchronize()
                if repeat:
                    times.append(time.perf_counter() - start)
                wrong |= not torch.equal(received, self._pattern(ramp, sender))
            steps.append(statistics.median(times))
        if device.type == "cuda":
            shut_down(group)
        return {"steps": steps, "fault": WRONG if wrong else ""}

    def _group(self, ranks: list[int], name: str) -> dist.ProcessGroup:
        """A process group of these ranks. dist.new_group would need the same calls on all other
        ranks.
        """
        store, timeout = (
            dist.PrefixStore(name, self.context.store),
            datetime.timedelta(seconds=self.timeout_s),
        )
        rank = ranks.index(self.context.rank)
        if self.context.device.type == "cpu":
            return dist.ProcessGroupGloo(store, rank, len(ranks), timeout)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        # Else NCCL waits without end for a node that hangs before it has connected.
        options.config.blocking = 0
        os.environ["TORCH_NCCL_NONBLOCKING_TIMEOUT"] = str(int(self.timeout_s))
        return dist.ProcessGroupNCCL(store, rank, len(ranks), options)

    @staticmethod
    def _pattern(ramp: torch.Tensor, rank: int) -> torch.Tensor:
        """As in collectives/operations.py: depends on the rank and the position."""
        return (rank % 7 + 1) * ramp + rank % 1009

    def _is_slow(self, here: int, there: int) -> bool:
        if self.context.inject == "slow-node-link":
            return {here, there} == set(self.link)
        return self.context.injected("slow-node")


def shut_down(group: dist.ProcessGroup) -> None:
    """Free the communicators of a group. Before torch 2.7 the method of NCCL's groups has a
    private name.
    """
    (getattr(group, "shutdown", None) or group._shutdown)()


def outcome(
    members: Group, units: list[list[int]], posts: dict[int, dict | None], gigabytes: float
) -> Outcome:
    """Outcome from the posts of a group's ranks (None: no post in time). `gigabytes`: data of one
    step per rank.

    Other processes may delay a rank on the CPU; the caller has removed that from the times.
    """
    silent = [unit for unit in members if any(posts[rank] is None for rank in units[unit])]
    if silent:
        return Outcome(0.0, TIMED_OUT)
    faults = {posts[rank]["fault"] for unit in members for rank in units[unit]}
    if fault := next((text for text in (TIMED_OUT, BROKEN, WRONG) if text in faults), ""):
        return Outcome(0.0, fault)
    # A node is as slow as its slowest rank.
    steps = [[max(times) for times in zip(*(posts[rank]["steps"] for rank in units[unit]), strict=True)]
             for unit in members]  # fmt: skip
    usual = statistics.median(seconds for times in steps for seconds in times)
    outliers = [[seconds > OUTLIER_FACTOR * usual for seconds in times] for times in steps]
    pairs = {
        tuple(sorted((unit, members[(index + step) % len(members)])))
        for index, unit in enumerate(members)
        for step in range(1, len(members))
        if outliers[index][step - 1] and outliers[(index + step) % len(members)][step - 1]
    }
    slowest = max(seconds for times in steps for seconds in times)
    hints = tuple(sorted(pairs)) if len(pairs) <= MAX_HINTS else ()
    return Outcome(gigabytes / slowest, hints=hints)
