"""Bad-node search in a running job: rank 0 plans the rounds, the ranks of each pair exchange data.

  ddp-launch -m gpuworker.accept.ddp_tests --bad-nodes
  torchrun --standalone --nproc-per-node=8 -m gpuworker.accept.ddp_tests --device cpu --bad-nodes

Rounds and results travel through the store and not through the fabric under test. A rank that posts
no result in time is a finding, and is left out of later rounds. The units under test are nodes, or
the ranks of the only node. In an exchange each rank sends to the rank of the same index on the
other node, and all that it receives is checked.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import statistics
import threading
import time
from collections.abc import Collection

import torch
import torch.distributed as dist

from gpuworker.accept.checks.bad_nodes.plan import BadNodeSearch, Findings, Pair, Seen
from gpuworker.accept.distributed.rank_context import RankContext
from gpuworker.judgement.report import Evidence
from gpuworker.runtime.log import log
from gpuworker.runtime.process_group import keep_alive

BYTES = {"cuda": 1 << 28, "cpu": 1 << 18}
REPEATS = {"cuda": 3, "cpu": 1}
# How much slower counts as bad, and times below which differences mean nothing: ranks on the CPU
# share processors.
TOLERANCE = {"cuda": 0.2, "cpu": 0.5}
RESOLUTION_S = {"cuda": 0.0, "cpu": 0.15}
POST_GRACE_S = 10  # for a post to arrive after the ranks timed out
NAMED = 8  # parts of a group
LONG = datetime.timedelta(hours=1)
TIMED_OUT, BROKEN, WRONG = "timed out", "connection broken", "wrong data"


def run(
    context: RankContext, timeout_s: float, expected_gbps: float | None = None
) -> Evidence | None:
    """The findings on rank 0; None on the others."""
    rounds = Rounds(context, timeout_s)
    context.post("bad_nodes/name", context.label if context.nodes == 1 else context.node)
    if context.rank == 0:
        return rounds.lead(expected_gbps)
    number = 0
    while pairs := rounds.pairs(number):
        rounds.take_part(pairs, number)
        number += 1
    return None


def units_of(context: RankContext) -> list[list[int]]:
    """The ranks of each node, which torchrun numbers node by node; on one node, each rank alone."""
    width = context.size // context.nodes if context.nodes > 1 else 1
    return [list(range(start, start + width)) for start in range(0, context.size, width)]


class Rounds:
    """The rounds as one rank takes part in them. `units[u]`: the ranks of node u."""

    def __init__(self, context: RankContext, timeout_s: float) -> None:
        self.context, self.timeout_s = context, timeout_s
        self.units, self.kind = units_of(context), context.device.type

    def pairs(self, number: int) -> list[Pair]:
        key = f"bad_nodes/round/{number}"
        self.context.store.wait([key], LONG)
        return [tuple(pair) for pair in json.loads(self.context.store.get(key))]

    def take_part(self, pairs: list[Pair], number: int) -> None:
        for pair in pairs:
            if any(map(self._is_in, pair)):
                if self.context.injected("hung-node"):
                    self.context.store.wait(["bad_nodes/done"], LONG)
                self.context.post(f"bad_nodes/{number}", self._test(pair, number))

    def lead(self, expected_gbps: float | None) -> Evidence:
        search = BadNodeSearch(len(self.units), TOLERANCE[self.kind], expected_gbps)
        store, tests, seen = self.context.store, search.run(), None
        with contextlib.suppress(StopIteration):
            for number in itertools.count():
                pairs, start = tests.send(seen), time.monotonic()
                store.set(f"bad_nodes/round/{number}", json.dumps(pairs))
                seen, silent = self._round(pairs, number)
                search.lost |= silent
                bad, seconds = sum(map(search.is_bad, seen.values())), time.monotonic() - start
                log("DDP", search_round=number + 1, pairs=len(pairs), bad=bad, seconds=seconds)
        store.set(f"bad_nodes/round/{number}", "[]")
        store.set("bad_nodes/done", "yes")
        return self._evidence(search.findings)

    def _round(self, pairs: list[Pair], number: int) -> tuple[Seen, set[int]]:
        """What the tests of the pairs saw, and the nodes that posted nothing."""
        deadline = time.monotonic() + 2 * self.timeout_s + POST_GRACE_S
        self.take_part(pairs, number)
        seen, silent = {}, set()
        for pair in pairs:
            ranks = [rank for unit in pair for rank in self.units[unit]]
            posts = {rank: self._post(f"bad_nodes/{number}/{rank}", deadline) for rank in ranks}
            silent |= {unit for unit in pair if None in map(posts.get, self.units[unit])}
            seen[pair] = outcome(posts.values(), BYTES[self.kind] / 1e9, RESOLUTION_S[self.kind])
        return seen, silent

    def _post(self, key: str, deadline: float) -> float | str | None:
        while not self.context.store.check([key]):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.02)
        return json.loads(self.context.store.get(key))

    def _is_in(self, unit: int) -> bool:
        return self.context.rank in self.units[unit]

    def _test(self, pair: Pair, number: int) -> float | str:
        """Seconds of an exchange of this rank, or a fault.

        In a thread: a call that never returns must not hang the leader.
        """
        device, found = self.context.device, [TIMED_OUT]

        def test() -> None:
            try:
                gpu = torch.cuda.device(device) if device.type == "cuda" else None
                with gpu or contextlib.nullcontext():
                    found[0] = self._exchange(pair, f"bad_nodes/group/{number}/{pair[0]}")
            except RuntimeError as error:  # torch raises it for timeouts and for lost connections
                text = str(error).lower()
                found[0] = TIMED_OUT if "timed out" in text or "timeout" in text else BROKEN

        thread = threading.Thread(target=test, daemon=True)
        thread.start()
        thread.join(2 * self.timeout_s)
        return found[0]

    def _exchange(self, pair: Pair, name: str) -> float | str:
        context, device, numel = self.context, self.context.device, BYTES[self.kind] // 4
        here, other = sorted(pair, key=self._is_in, reverse=True)
        ranks = [rank for unit in pair for rank in self.units[unit]]
        group = self._group(ranks, name)
        partner = self.units[other][self.units[here].index(context.rank)]
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
        for _ in range(REPEATS[self.kind] + 1):  # the first one connects the two
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
        if self.kind == "cpu":
            return dist.ProcessGroupGloo(store, rank, len(ranks), timeout)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        # Else NCCL waits without end for a node that hangs before it has connected.
        options.config.blocking = 0
        os.environ["TORCH_NCCL_NONBLOCKING_TIMEOUT"] = str(int(self.timeout_s))
        return dist.ProcessGroupNCCL(store, rank, len(ranks), options)

    def _evidence(self, findings: Findings) -> Evidence:
        """The findings, with the names of nodes beside their numbers."""
        get, units = self.context.store.get, self.units
        names = [json.loads(get(f"bad_nodes/name/{ranks[0]}")) for ranks in units]
        what = "node" if self.context.nodes > 1 else "rank"
        if what == "node":
            shown = [f"node {unit} ({name})" for unit, name in enumerate(names)]
            parts = [f"node {name}" for name in names]
        else:
            shown, parts = names, [f"rank {ranks[0]}" for ranks in units]
        found, reference = Evidence(), findings.reference_gbps
        link = "the link between {} is bad, both are good with others: "
        for report, kind, words, bad in (
            (found.fail, "bad-node", "{} is bad: ", findings.bad_nodes),
            (found.fail, "bad-link", link, findings.bad_links),
            (found.incomplete, "missing", "{}: ", findings.undecided),
        ):
            for group, why in sorted(bad.items()):
                more = f" and {len(group) - NAMED} more" if len(group) > NAMED else ""
                where = " and ".join(shown[unit] for unit in group[:NAMED]) + more
                text = words.format(where) + why.replace("with node", f"with {what}")
                report(kind, text, *(parts[unit] for unit in group[:NAMED]))
        found.facts = {"units": what, "count": len(units), "reference_gbps": reference}
        if reference:
            found.add_number("pair_bandwidth", reference, "GB/s")
        else:
            found.incomplete("missing", "no exchange was completed", measure="pair_bandwidth")
        return found


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
