"""Reports of cross-node checks on the fleet report: findings on the nodes and devices that the
checks name.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuworker.fleet.report_sources import read
from gpuworker.fleet.report_store import ReportStore
from gpuworker.judgement.fleet_report import Fleet
from gpuworker.judgement.report import FAIL, INCOMPLETE, PASS, WARN, Requested
from gpuworker.judgement.sources import Expected
from tests.helpers.fleet_reports import (
    REQUESTED,
    changed,
    complete_report,
    merged,
    node_report,
    problem,
    source,
    world_check,
    world_report,
)

RANKS = {"n1": [0, 1], "n7": [2, 3]}
SLOW = "rank 3 (node n7, cuda:1) is slow: 12 ms for work that takes 3 ms (4.00 x)"


def stragglers(*problems: tuple[str, str, str]) -> dict:
    """The check with these problems (verdict, reason, parts), and with the worst verdict of them."""
    return world_check(
        "stragglers", *(problem(verdict, "slow-rank", *rest) for verdict, *rest in problems)
    )


def fleet_with(*problems: tuple[str, ...], nodes: tuple[str, ...] = ("n1", "n7")) -> Fleet:
    world = world_report(RANKS, stragglers(*problems), world_check("correctness"))
    return merged(world, *map(node_report, nodes), expected=Expected(2))


def found(fleet: Fleet) -> list[tuple[str, str, str, str]]:
    return [(f.verdict, f.node, f.device, f.check) for f in fleet.findings if f.found_by == "world"]


def test_a_failing_rank_fails_its_node_and_names_the_device() -> None:
    fleet = fleet_with((FAIL, SLOW, "rank 3"))
    assert found(fleet) == [(FAIL, "n7", "cuda:1", "stragglers")]
    assert (fleet.verdict, [node.verdict for node in fleet.nodes]) == (FAIL, [PASS, FAIL])
    assert fleet.reason == f"n7 cuda:1 stragglers: {SLOW}"


def test_a_world_that_passed_changes_no_verdict() -> None:
    fleet = fleet_with()
    assert (fleet.verdict, fleet.findings, fleet.notes) == (PASS, [], [])
    assert [(world.ranks, world.nodes, world.verdict) for world in fleet.worlds] == [
        (4, ["n1", "n7"], PASS)
    ]


@pytest.mark.parametrize(
    ("parts", "places"),
    [
        (["rank 2"], [("n7", "cuda:0")]),
        ([f"rank {'9' * 5000}"], [("", "")]),
        (["node n7"], [("n7", "")]),
        (["node n1", "node n7"], [("n1", ""), ("n7", "")]),
        (["rank 0", "rank 3"], [("n1", "cuda:0"), ("n7", "cuda:1")]),
        ([], [("", "")]),
        (["rank 99"], [("", "")]),
        (["node nowhere"], [("", "")]),
    ],
)
def test_a_finding_is_at_the_parts_that_it_names(
    parts: list[str], places: list[tuple[str, str]]
) -> None:
    fleet = fleet_with((FAIL, "rank 1 (node n1, cuda:1) is only a word", *parts))
    assert [(node, device) for _, node, device, _ in found(fleet)] == places
    assert fleet.verdict == FAIL


def test_the_newest_report_of_a_world_counts() -> None:
    old = world_report(RANKS, stragglers((FAIL, SLOW, "rank 3")))
    new = world_report(RANKS, stragglers(), started="2026-01-05T12:00:00+00:00")
    other = world_report(RANKS, world_check("correctness"))
    fleet = merged(new, old, other, *map(node_report, RANKS), expected=Expected(2))
    assert (fleet.verdict, len(fleet.worlds)) == (PASS, 2)


@pytest.mark.parametrize(
    "world", [None, {}, {"size": 1, "nodes": []}, {"size": 1, "nodes": [{"node": "n"}]}]
)
def test_a_world_report_without_its_nodes_is_damaged(world: object, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(
        json.dumps(changed(world_report(RANKS, world_check("correctness")), "world", world))
    )
    (source,) = read(str(path))
    assert source.report is None and "damaged report: world" in source.error


def test_the_collector_keeps_a_node_and_a_world_apart(tmp_path: Path) -> None:
    for restarted in range(2):
        store = ReportStore(tmp_path, Expected(1, run_id="1"))
        if not restarted:
            store.add(source(complete_report("n1")).report)
            store.add(source(world_report(RANKS, world_check("correctness"), run_id="1")).report)
        assert (len(store.fleet().nodes), len(store.fleet().worlds)) == (1, 1)


GOOD = world_report(RANKS, stragglers(), world_check("correctness"))
CPU = Requested("cpu", 0, "quick")
UNPROVEN = {
    "no number": ("checks/1/measurements", []),
    "no value": ("checks/1/measurements/0/value", None),
    "a gradient that is wrong": ("checks/1/measurements/0/value", 1e30),
    "a number of another unit": ("checks/1/measurements/0/unit", "y"),
    "a number that cannot be": ("checks/0/measurements/0/value", 0.5),
    "another number": ("checks/0/measurements/1/name", "lateness"),
    "another check": ("checks/1/name", "all is well"),
    "a rank on no node": ("world/nodes/1/ranks", [2]),
    "a rank on two nodes": ("world/nodes/1/ranks", [1, 2, 3]),
    "more ranks than its size": ("world/size", 1),
    "a node that did not report": ("world/nodes/1/node", "stranger"),
    "fewer GPUs than ranks": ("facts/gpu_models", ["NVIDIA H100 80GB HBM3"]),
    "an injected fault": ("requested/inject", "slow-rank"),
    "it started before GPUs": ("started", "1970-01-01T00:00:00+00:00"),
    "checks that took longer than all": ("duration_s", 0.0),
    "an end in the future": ("duration_s", 1e9),
    "a check that took no time": ("checks/1/duration_s", 0.0),
}


@pytest.mark.parametrize(("path", "value"), UNPROVEN.values(), ids=UNPROVEN)
def test_a_world_that_proves_nothing_does_not_pass(path: str, value: object) -> None:
    nodes = [node_report(name) for name in RANKS]
    assert merged(GOOD, *nodes, expected=Expected(2)).verdict == PASS
    fleet = merged(changed(GOOD, path, value), *nodes, expected=Expected(2))
    assert fleet.verdict in (INCOMPLETE, FAIL), fleet.findings
    assert [each.verdict for each in fleet.worlds] == [fleet.verdict] or path.endswith("/node")


def test_numbers_that_were_removed_with_a_reason_are_not_measured() -> None:
    world = changed(
        changed(GOOD, "checks/1/measurements", []),
        "checks/1/inapplicable",
        {"gradient_error": "never"},
    )
    nodes = [node_report(name) for name in RANKS]
    assert merged(world, *nodes, expected=Expected(2)).verdict in (INCOMPLETE, FAIL)


def test_a_world_is_of_the_device_of_its_fleet() -> None:
    world = world_report(
        {"n1": [0, 1]}, world_check("correctness"), device="cpu", facts={"gpu_models": []}
    )
    rehearsed = complete_report("n1", CPU)
    assert merged(world, rehearsed, expected=Expected(1, requested=CPU)).verdict == PASS
    assert (
        merged(world, complete_report("n1"), expected=Expected(1, requested=REQUESTED)).verdict
        == INCOMPLETE
    )


@pytest.mark.parametrize(
    ("ranks", "ceiling", "verdict", "limit"),
    [({"n1": [0, 1]}, 450.0, FAIL, 324.0), (RANKS, 450.0, FAIL, 360.0), (RANKS, None, WARN, None)],
    ids=["NVLink of a node", "a network between nodes", "a network that is not known"],
)
def test_limits_of_a_world_are_those_of_the_collector(
    ranks: dict[str, list[int]], ceiling: float | None, verdict: str, limit: float | None
) -> None:
    slow = world_check("collectives", all_reduce_busbw=4.0)
    slow["ceilings"] = {"all_reduce_busbw": [ceiling, "NVLink"]} if ceiling else {}
    fleet = merged(
        world_report(ranks, slow), *map(node_report, ranks), expected=Expected(len(ranks))
    )
    assert fleet.verdict == verdict, fleet.findings
    assert {d.limit for d in fleet.distributions if d.name == "all_reduce_busbw"} == {limit}
