"""Bad-node search in a running job: rank 0 plans the rounds, the ranks of each group run the group tests.

  ddp-launch -m gpuworker.accept.ddp_tests --bad-nodes
  torchrun --standalone --nproc-per-node=8 -m gpuworker.accept.ddp_tests --device cpu --bad-nodes --timeout 20

Rounds and results travel through the store and not through the fabric under test. A rank that posts no result in time
is a finding, and is left out of later rounds. The units under test are nodes, or the ranks of the only node.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import threading
import time

import torch

from gpuworker.accept.checks.bad_nodes.findings import Findings, Group, Outcome
from gpuworker.accept.checks.bad_nodes.group_test import TIMED_OUT, GroupTest, outcome
from gpuworker.accept.checks.bad_nodes.search_plan import BadNodeSearch
from gpuworker.accept.distributed.rank_context import RankContext
from gpuworker.judgement.report import Evidence, Measurement
from gpuworker.runtime.log import log

BYTES = {"cuda": 1 << 28, "cpu": 1 << 18}
# How much slower counts as bad, and times below which differences mean nothing: ranks on the CPU
# share processors.
TOLERANCE = {"cuda": 0.2, "cpu": 0.5}
RESOLUTION_S = {"cuda": 0.0, "cpu": 0.15}
POST_GRACE_S = 10  # for a post to arrive after the ranks timed out


def run(context: RankContext, timeout_s: float, expected_gbps: float | None = None) -> dict:
    """The findings as JSON types on rank 0; an empty dict on the others."""
    units = units_of(context)
    kind = context.device.type
    link = tuple(sorted((context.inject_rank % len(units), (context.inject_rank + 3) % len(units))))
    test = GroupTest(context, units, BYTES[kind] // 4, 3 if kind == "cuda" else 1, timeout_s, link)
    context.post("bad_nodes/name", context.label if context.nodes == 1 else context.node)
    here = next(number for number, ranks in enumerate(units) if context.rank in ranks)
    if context.rank == 0:
        return _run_search(
            context, test, BadNodeSearch(len(units), TOLERANCE[kind], expected_gbps), here
        )
    number = 0
    while groups := _round(context, number):
        _take_part(context, test, groups, here, number)
        number += 1
    return {}


def units_of(context: RankContext) -> list[list[int]]:
    """The ranks of each node, which torchrun numbers node by node; on one node, each rank alone."""
    width = context.size // context.nodes if context.nodes > 1 else 1
    return [list(range(start, start + width)) for start in range(0, context.size, width)]


def _round(context: RankContext, number: int) -> list[Group]:
    context.store.wait([f"bad_nodes/round/{number}"], datetime.timedelta(hours=1))
    return [tuple(group) for group in json.loads(context.store.get(f"bad_nodes/round/{number}"))]


def _take_part(
    context: RankContext, test: GroupTest, groups: list[Group], here: int, number: int
) -> None:
    for group in groups:
        if here in group:
            if context.injected("hung-node"):
                context.store.wait(["bad_nodes/done"], datetime.timedelta(hours=1))
            context.post(f"bad_nodes/{number}", _bounded(test, group, number))


def _bounded(test: GroupTest, group: Group, number: int) -> dict:
    """This rank's part of a test, in a thread: a call that never returns must not hang the
    leader.
    """
    found: list[dict] = []

    def run() -> None:
        device = test.context.device
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            found.append(test.run(group, number))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(2 * test.timeout_s)
    return found[0] if found else {"steps": [], "fault": TIMED_OUT}


def _run_search(context: RankContext, test: GroupTest, plan: BadNodeSearch, here: int) -> dict:
    units, lost, number = test.units, set(), 0
    while groups := plan.next_round():
        groups_to_test = [group for group in groups if lost.isdisjoint(group)]
        outcomes = dict.fromkeys(groups, Outcome(0.0, TIMED_OUT))
        if groups_to_test:
            context.store.set(f"bad_nodes/round/{number}", json.dumps(groups_to_test))
            start = time.monotonic()
            _take_part(context, test, groups_to_test, here, number)
            deadline = start + test.timeout_s * 2 + POST_GRACE_S
            for group in groups_to_test:
                posts = {
                    rank: _post(context, number, rank, deadline)
                    for unit in group
                    for rank in units[unit]
                }
                lost |= {unit for unit in group if any(posts[rank] is None for rank in units[unit])}
                outcomes[group] = outcome(group, units, posts, BYTES[context.device.type] / 1e9)
            number += 1
            seconds = time.monotonic() - start
            bad = sum(bool(o.fault) for o in outcomes.values())
            log("DDP", search_round=number, groups=len(groups_to_test), faults=bad, seconds=seconds)
        plan.record([outcomes[group] for group in groups])
    context.store.set(f"bad_nodes/round/{number}", "[]")
    context.store.set("bad_nodes/done", "yes")
    return _result(context, units, plan.findings)


def _post(context: RankContext, number: int, rank: int, deadline: float) -> dict | None:
    key = f"bad_nodes/{number}/{rank}"
    while not context.store.check([key]):
        if time.monotonic() > deadline:
            return None
        time.sleep(0.02)
    post = json.loads(context.store.get(key))
    least = RESOLUTION_S[context.device.type]
    return {**post, "steps": [max(least, seconds) for seconds in post["steps"]]}


def _result(context: RankContext, units: list[list[int]], findings: Findings) -> dict:
    names = [json.loads(context.store.get(f"bad_nodes/name/{ranks[0]}")) for ranks in units]
    what = "node" if context.nodes > 1 else "rank"

    def name(group: Group) -> str:
        parts = [
            names[unit] if what == "rank" else f"node {unit} ({names[unit]})" for unit in group[:8]
        ]
        return " and ".join(parts) + (f" and {len(group) - 8} more" if len(group) > 8 else "")

    def parts(group: Group) -> list[str]:
        return [
            f"node {names[unit]}" if what == "node" else f"rank {units[unit][0]}"
            for unit in group[:8]
        ]

    return {
        "units": what,
        "count": len(units),
        "bad": [
            (f"{name((unit,))} is bad: {why.replace('with node', f'with {what}')}", parts((unit,)))
            for unit, why in sorted(findings.bad_nodes.items())
        ],
        "bad_links": [
            (f"the link between {name(link)} is bad, both are good with others: {why}", parts(link))
            for link, why in sorted(findings.bad_links.items())
        ],
        "undecided": [
            (f"{name(group)}: {why}", parts(group)) for group, why in findings.undecided.items()
        ],
        "unexplained": findings.unexplained,
        "reference_gbps": findings.reference_gbps,
        "rounds": findings.rounds,
        "tests": findings.tests,
        "run_id": os.environ.get("RUN_ID", ""),
    }


def evidence(result: dict) -> Evidence:
    texts = {
        name: [words for words, _ in result[name]] for name in ("bad", "bad_links", "undecided")
    }
    found = Evidence(facts={**result, **texts})
    for words, parts in result["bad"]:
        found.fail("bad-node", words, *parts)
    for words, parts in result["bad_links"]:
        found.fail("bad-link", words, *parts)
    for words, parts in result["undecided"]:
        found.incomplete("missing", words, *parts)
    for words in result["unexplained"]:
        found.warn("outlier", words)
    if result["reference_gbps"]:
        found.measurements.append(Measurement("pair_bandwidth", result["reference_gbps"], "GB/s"))
    else:
        found.incomplete("missing", "no exchange was completed", measure="pair_bandwidth")
    return found
