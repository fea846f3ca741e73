"""Bad-node search in a running job: rank 0 announces rounds, the ranks of each pair exchange data.

  ddp-launch -m gpuworker.accept.ddp_tests --bad-nodes
  torchrun --standalone --nproc-per-node=8 -m gpuworker.accept.ddp_tests --device cpu --bad-nodes

Rounds and results travel through the store and not through the fabric under test. A node that posts
no result in time is a finding, and is left out of later rounds. The units under test are nodes, or
the ranks of the only node. In an exchange each rank sends to the rank of the same index on the
other node, and all that it receives is checked.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import statistics
import threading
import time
from collections.abc import Collection

import torch
import torch.distributed as dist

from gpuworker.accept.checks.bad_nodes import plan
from gpuworker.accept.checks.bad_nodes.plan import Pair, Seen
from gpuworker.accept.distributed.rank_context import RankContext
from gpuworker.judgement.report import Evidence
from gpuworker.runtime.log import log
from gpuworker.runtime.process_group import keep_alive

BYTES = {"cuda": 1 << 28, "cpu": 1 << 18}
REPEATS = 3  # of an exchange; the median counts
# How much slower counts as bad, and times below which differences mean nothing: ranks on the CPU
# share processors.
TOLERANCE = {"cuda": 0.2, "cpu": 0.5}
RESOLUTION_S = {"cuda": 0.0, "cpu": 0.15}
POST_GRACE_S = 10  # for a post to arrive after the ranks timed out
LONG = datetime.timedelta(hours=1)
NOT_DONE, WRONG = "not completed", "wrong data"


def run(
    context: RankContext, timeout_s: float, expected_gbps: float | None = None
) -> Evidence | None:
    """The findings on rank 0; None on the others."""
    rounds = Rounds(context, timeout_s)
    part = f"node {context.node}" if context.nodes > 1 else f"rank {context.rank}"
    parts = context.gather("part", part)
    if context.rank == 0:
        names = [parts[ranks[0]] for ranks in rounds.units]
        found = plan.search(names, rounds.lead, TOLERANCE[rounds.kind], expected_gbps)
        rounds.announce([])
        return found
    while pairs := rounds.announced():
        rounds.take_part(pairs)
    return None


def units_of(context: RankContext) -> list[list[int]]:
    """The ranks of each node, which torchrun numbers node by node; on one node, each rank alone."""
    width = context.size // context.nodes if context.nodes > 1 else 1
    return [list(range(start, start + width)) for start in range(0, context.size, width)]


class Rounds:
    """The rounds as one rank takes part in them. `units[u]`: the ranks of node u."""

    def __init__(self, context: RankContext, timeout_s: float) -> None:
        self.context, self.timeout_s = context, timeout_s
        self.store = dist.PrefixStore("bad_nodes", context.store)
        self.units, self.kind, self.number = units_of(context), context.device.type, 0
        self.own = next(unit for unit, ranks in enumerate(self.units) if context.rank in ranks)

    def announce(self, pairs: list[Pair]) -> None:
        self.number += 1
        self.store.set(f"round/{self.number}", json.dumps(pairs))

    def announced(self) -> list[Pair]:
        self.number += 1
        self.store.wait([f"round/{self.number}"], LONG)
        return json.loads(self.store.get(f"round/{self.number}"))

    def take_part(self, pairs: list[Pair]) -> None:
        for pair in pairs:
            if self.own in pair and not self.context.injected("hung-node"):
                self.store.set(self._key(self.context.rank), json.dumps(self._test(pair)))

    def lead(self, pairs: list[Pair]) -> tuple[Seen, set[int]]:
        """What a round of pairs saw, and the nodes that did not answer."""
        start, seen, silent = time.monotonic(), {}, set()
        self.announce(pairs)
        self.take_part(pairs)
        keys = [self._key(rank) for pair in pairs for unit in pair for rank in self.units[unit]]
        left_s = 2 * self.timeout_s + POST_GRACE_S - (time.monotonic() - start)
        with contextlib.suppress(RuntimeError):  # some did not answer
            self.store.wait(keys, datetime.timedelta(seconds=max(left_s, 1)))
        for pair in pairs:
            said = {rank: self._said(rank) for unit in pair for rank in self.units[unit]}
            silent |= {unit for unit in pair if None in map(said.get, self.units[unit])}
            seen[pair] = outcome(said.values(), BYTES[self.kind] / 1e9, RESOLUTION_S[self.kind])
        log("DDP", search_round=self.number, pairs=len(pairs), seconds=time.monotonic() - start)
        return seen, silent

    def _key(self, rank: int) -> str:
        return f"{self.number}/{rank}"

    def _said(self, rank: int) -> float | str | None:
        key = self._key(rank)
        return json.loads(self.store.get(key)) if self.store.check([key]) else None

    def _test(self, pair: Pair) -> float | str:
        """Seconds of an exchange of this rank, or a fault.

        In a thread: a call that never returns must not hang the leader.
        """
        device, found = self.context.device, [NOT_DONE]
        gpu = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()

        def test() -> None:
            # torch raises it for time-outs and for lost connections
            with contextlib.suppress(RuntimeError), gpu:
                found[0] = self._exchange(pair)

        thread = threading.Thread(target=test, daemon=True)
        thread.start()
        thread.join(2 * self.timeout_s)
        return found[0]

    def _exchange(self, pair: Pair) -> float | str:
        context, device, numel = self.context, self.context.device, BYTES[self.kind] // 4
        ranks = [rank for unit in pair for rank in self.units[unit]]
        group = self._group(ranks, f"group/{self.number}/{pair[0]}")
        other = self.units[sum(pair) - self.own]
        partner = other[self.units[self.own].index(context.rank)]
        split = [numel * (rank == partner) for rank in ranks]
        ramp = (torch.arange(numel, device=device) % 61).float()
        mine = keep_alive(_pattern(ramp, context.rank))
        if context.injected("corrupt-node"):
            mine.view(torch.int32)[numel // 2] ^= 1 << 20
        received = keep_alive(torch.empty_like(mine))
        ends = {(context.inject_rank + shift) % len(self.units) for shift in (0, 3)}
        slow = context.injected("slow-node") or (
            context.inject == "slow-node-link" and {*pair} == ends
        )
        times, wrong = [], False
        for _ in range(REPEATS + 1):  # the first one connects the two
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
        store, rank = dist.PrefixStore(name, self.store), ranks.index(self.context.rank)
        if self.kind == "cpu":
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
    found = [NOT_DONE if post is None else post for post in posts]
    faults = [post for post in found if isinstance(post, str)]
    return faults[0] if faults else gigabytes / max(*found, least_s)
