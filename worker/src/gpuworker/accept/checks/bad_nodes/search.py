"""Bad-node search in a running job: rank 0 plans the rounds, the ranks of each pair test it.

  ddp-launch -m gpuworker.accept.ddp_tests --bad-nodes
  torchrun --standalone --nproc-per-node=8 -m gpuworker.accept.ddp_tests --device cpu --bad-nodes

Rounds and results travel through the store and not through the fabric under test. A rank that posts
no result in time is a finding, and is left out of later rounds. The units under test are nodes, or
the ranks of the only node.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import time

from gpuworker.accept.checks.bad_nodes.pair_test import TIMED_OUT, PairTest, outcome
from gpuworker.accept.checks.bad_nodes.plan import BadNodeSearch, Findings, Pair, Seen
from gpuworker.accept.distributed.rank_context import RankContext
from gpuworker.judgement.report import Evidence
from gpuworker.runtime.log import log

BYTES = {"cuda": 1 << 28, "cpu": 1 << 18}
# How much slower counts as bad, and times below which differences mean nothing: ranks on the CPU
# share processors.
TOLERANCE = {"cuda": 0.2, "cpu": 0.5}
RESOLUTION_S = {"cuda": 0.0, "cpu": 0.15}
POST_GRACE_S = 10  # for a post to arrive after the ranks timed out
NAMED = 8  # parts of a group
LONG = datetime.timedelta(hours=1)


def run(
    context: RankContext, timeout_s: float, expected_gbps: float | None = None
) -> Evidence | None:
    """The findings on rank 0; None on the others."""
    units, kind = units_of(context), context.device.type
    link = tuple(sorted((context.inject_rank + shift) % len(units) for shift in (0, 3)))
    test = PairTest(context, units, BYTES[kind] // 4, 3 if kind == "cuda" else 1, timeout_s, link)
    context.post("bad_nodes/name", context.label if context.nodes == 1 else context.node)
    if context.rank == 0:
        return _lead(test, BadNodeSearch(len(units), TOLERANCE[kind], expected_gbps))
    number = 0
    while pairs := _round(context, number):
        _take_part(test, pairs, number)
        number += 1
    return None


def units_of(context: RankContext) -> list[list[int]]:
    """The ranks of each node, which torchrun numbers node by node; on one node, each rank alone."""
    width = context.size // context.nodes if context.nodes > 1 else 1
    return [list(range(start, start + width)) for start in range(0, context.size, width)]


def _round(context: RankContext, number: int) -> list[Pair]:
    context.store.wait([f"bad_nodes/round/{number}"], LONG)
    return [tuple(pair) for pair in json.loads(context.store.get(f"bad_nodes/round/{number}"))]


def _take_part(test: PairTest, pairs: list[Pair], number: int) -> None:
    context = test.context
    for pair in pairs:
        if any(map(test.is_in, pair)):
            if context.injected("hung-node"):
                context.store.wait(["bad_nodes/done"], LONG)
            context.post(f"bad_nodes/{number}", test.run(pair, number))


def _lead(test: PairTest, search: BadNodeSearch) -> Evidence:
    context, lost, number = test.context, set(), 0
    tests = search.run()
    pairs = next(tests)
    with contextlib.suppress(StopIteration):
        while True:
            seen: Seen = dict.fromkeys((p for p in pairs if not lost.isdisjoint(p)), TIMED_OUT)
            if present := [pair for pair in pairs if lost.isdisjoint(pair)]:
                start = time.monotonic()
                found, silent = _run_round(test, present, number)
                seen, lost, number = seen | found, lost | silent, number + 1
                bad, seconds = sum(map(search.is_bad, found.values())), time.monotonic() - start
                log("DDP", search_round=number, pairs=len(present), bad=bad, seconds=seconds)
            pairs = tests.send(seen)
    context.store.set(f"bad_nodes/round/{number}", "[]")
    context.store.set("bad_nodes/done", "yes")
    return _evidence(context, test.units, search.findings)


def _run_round(test: PairTest, pairs: list[Pair], number: int) -> tuple[Seen, set[int]]:
    """What the tests of the pairs saw, and the nodes that posted nothing."""
    context, units, kind = test.context, test.units, test.context.device.type
    context.store.set(f"bad_nodes/round/{number}", json.dumps(pairs))
    deadline = time.monotonic() + 2 * test.timeout_s + POST_GRACE_S
    _take_part(test, pairs, number)
    seen, silent = {}, set()
    for pair in pairs:
        ranks = [rank for unit in pair for rank in units[unit]]
        posts = {rank: _post(context, f"bad_nodes/{number}/{rank}", deadline) for rank in ranks}
        silent |= {u for u in pair if any(posts[r] is None for r in units[u])}
        seen[pair] = outcome(posts.values(), BYTES[kind] / 1e9, RESOLUTION_S[kind])
    return seen, silent


def _post(context: RankContext, key: str, deadline: float) -> float | str | None:
    while not context.store.check([key]):
        if time.monotonic() > deadline:
            return None
        time.sleep(0.02)
    return json.loads(context.store.get(key))


def _evidence(context: RankContext, units: list[list[int]], findings: Findings) -> Evidence:
    """The findings, with the names of nodes beside their numbers."""
    names = [json.loads(context.store.get(f"bad_nodes/name/{ranks[0]}")) for ranks in units]
    what = "node" if context.nodes > 1 else "rank"
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
