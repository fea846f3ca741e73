"""One group test of the bad-node search: every pair of nodes exchanges data, all of it checked.

In each step every node exchanges with one other node, each rank with the rank of the same index
there, so that the time of a pair depends on no third node.
"""

from __future__ import annotations

import datetime
import os
import statistics
import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist

from gpuworker.accept.checks.bad_nodes.plan import Group, Seen, pair_of, rounds_of_pairs
from gpuworker.accept.distributed.rank_context import RankContext
from gpuworker.runtime.process_group import keep_alive

TIMED_OUT, BROKEN, WRONG = "timed out", "connection broken", "wrong data"


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

    def run(self, members: Group, number: int) -> list:
        """This rank's part of a test of the nodes `members`: for each step its pair, and its
        seconds or a fault; at a fault other than wrong data the test ends.

        In a thread: a call that never returns must not hang the leader.
        """
        device, here = self.context.device, next(filter(self.is_in, members))
        steps, post, faults = _pairs(members, here), [], [TIMED_OUT]

        def test() -> None:
            try:
                with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                    self._test(members, here, f"bad_nodes/group/{number}/{members[0]}", post)
                faults.clear()
            except RuntimeError as error:  # torch raises it for timeouts and for lost connections
                text = str(error).lower()
                faults[0] = TIMED_OUT if "timed out" in text or "timeout" in text else BROKEN

        thread = threading.Thread(target=test, daemon=True)
        thread.start()
        thread.join(2 * self.timeout_s)
        done = list(post)
        return done + [[*ended] for ended in zip(steps[len(done) :], faults, strict=False)]

    def is_in(self, unit: int) -> bool:
        return self.context.rank in self.units[unit]

    def _test(self, members: Group, here: int, name: str, post: list) -> None:
        context, device = self.context, self.context.device
        ranks = [rank for unit in members for rank in self.units[unit]]
        group = self._group(ranks, name)
        column = self.units[here].index(context.rank)
        ramp = (torch.arange(self.numel, device=device) % 61).float()
        mine = keep_alive(_pattern(ramp, context.rank))
        if context.injected("corrupt-node"):
            mine.view(torch.int32)[self.numel // 2] ^= 1 << 20
        received = keep_alive(torch.empty_like(mine))
        for pair in _pairs(members, here):
            (other,) = set(pair) - {here} or pair  # with itself, while it pauses
            partner, split = self.units[other][column], [0] * len(ranks)
            split[ranks.index(partner)] = self.numel
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
            post.append([pair, WRONG if wrong else statistics.median(times[1:])])
        if device.type == "cuda":
            shut_down(group)

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


def _pattern(ramp: torch.Tensor, rank: int) -> torch.Tensor:
    """As in collectives/operations.py: depends on the rank and the position."""
    return (rank % 7 + 1) * ramp + rank % 1009


def shut_down(group: dist.ProcessGroup) -> None:
    """Free the communicators of a group. Before torch 2.7 the method of NCCL's groups has a
    private name.
    """
    (getattr(group, "shutdown", None) or group._shutdown)()


def _pairs(members: Group, here: int) -> list[Group]:
    """The pair of a node in each step; the node alone while it pauses."""
    steps = [
        [tuple(members[index] for index in pair) for pair in step]
        for step in rounds_of_pairs(len(members))
    ]
    return [next((pair for pair in step if here in pair), (here,)) for step in steps]


def outcome(
    members: Group,
    units: list[list[int]],
    posts: dict[int, list | None],
    gigabytes: float,
    least_s: float = 0.0,
) -> Seen:
    """What the posts of a group's ranks (None: no post in time) show of each pair: its slowest
    rank counts. `gigabytes`: data of one exchange of a rank, which takes `least_s` at least.

    Pairs after the step at which the test broke are missing.
    """
    ends = [len(post) for post in posts.values() if post and post[-1][1] in (TIMED_OUT, BROKEN)]
    values: dict[Group, list[float | str]] = {}
    for unit in members:
        for post in (posts[rank] for rank in units[unit]):
            if post is None:
                post = [[pair_of(unit, other), TIMED_OUT] for other in members]
            elif len(post) > min(ends, default=len(post)):
                post = post[:-1]  # it waited for those who failed before
            for pair, value in post:
                rate = value if isinstance(value, str) else gigabytes / max(value, least_s)
                values.setdefault(tuple(pair), []).append(rate)
    # a rank that pauses exchanges with itself
    return {pair: worst(values[pair]) for pair in values if len(set(pair)) == 2}


def worst(values: list[float | str]) -> float | str:
    faults = [value for value in values if isinstance(value, str)]
    return faults[0] if faults else min(values)
