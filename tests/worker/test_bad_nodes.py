"""The search for bad nodes on a real world of eight processes, one of them with a fault."""

import time

import pytest

from gpuworker.accept.checks.bad_nodes import search
from gpuworker.accept.distributed import local_world
from gpuworker.judgement.check_spec import Plan
from tests.helpers.evidence import failures, not_measured

# Python 3.12 and newer warn of fork in a process with threads, which pytest-xdist makes of this
# one.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]


@pytest.fixture
def search_with(tmp_path, monkeypatch):
    """The evidence of a search among eight ranks; rank 2 has the fault, if any."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")

    def search_with(fault: str = "", timeout_s: float = 60):
        plan = Plan("cpu", 0, scratch=tmp_path, processes=8, inject=fault)
        results = local_world.run(plan, slow_rank_2, timeout_s=timeout_s)
        assert [bool(result) for result in results] == [True] + [False] * 7, (
            "only rank 0 returns findings"
        )
        return results[0]

    return search_with


def slow_rank_2(context, timeout_s: float):
    context.inject_rank = 2
    return search.run(context, timeout_s)


def test_a_healthy_world_accuses_nobody(search_with):
    found = search_with()
    assert (failures(found), not_measured(found)) == ([], [])
    assert [measurement.name for measurement in found.measurements] == ["pair_bandwidth"]


@pytest.mark.parametrize(
    ("fault", "kind", "parts"),
    [
        ("slow-node", "bad-node", ["rank 2"]),
        ("corrupt-node", "bad-node", ["rank 2"]),
        ("slow-node-link", "bad-link", ["rank 2", "rank 5"]),
    ],
)
def test_a_fault_is_named(search_with, fault, kind, parts):
    found = search_with(fault)
    assert [(each.verdict, each.kind, each.parts) for each in found.problems] == [
        ("FAIL", kind, parts)
    ]


def test_a_node_that_hangs_is_named_and_the_search_goes_on(search_with):
    found = search_with("hung-node", timeout_s=6)
    (problem,) = found.problems
    assert (problem.kind, problem.parts) == ("bad-node", ["rank 2"])
    assert problem.reason.count(": not completed") == 1, (
        "one that did not answer is not asked again"
    )


def test_a_connection_that_never_returns_does_not_hang_the_leader(search_with, monkeypatch):
    """As ncclCommInitRank, which knows no time-out, with a node that hangs before it. Here: every
    group with rank 2.
    """
    connect = search.Rounds._group

    def hang(self, ranks, name):
        return time.sleep(600) if 2 in ranks else connect(self, ranks, name)

    monkeypatch.setattr(search.Rounds, "_group", hang)
    start = time.monotonic()
    found = search_with("", timeout_s=4)
    assert time.monotonic() - start < 300
    assert [(each.kind, each.parts) for each in found.problems] == [("bad-node", ["rank 2"])]


def test_units_are_nodes_or_the_ranks_of_the_only_node():
    class RankContext:
        size, nodes = 8, 2

    assert search.units_of(RankContext) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    RankContext.nodes = 1
    assert search.units_of(RankContext) == [[rank] for rank in range(8)]


@pytest.mark.parametrize(
    ("posts", "seen"),
    [
        ([1.0, 4.0], 2.0),
        ([1.0, "wrong data"], "wrong data"),
        ([1.0, None], "not completed"),
        ([0.001, 0.002], 16.0),
    ],
)
def test_a_pair_is_as_slow_as_its_slowest_rank(posts, seen):
    assert search.outcome(posts, 8.0, least_s=0.5) == seen
