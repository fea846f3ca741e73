"""The search for bad nodes on a real world of eight processes, one of them with a fault."""

import os
import time

import pytest

from gpuworker.accept.check_spec import Plan
from gpuworker.accept.checks.bad_nodes import group_test, search
from gpuworker.accept.distributed import local_world
from tests.helpers.evidence import failures, not_measured

# Python 3.12 and newer warn of fork in a process with threads, which pytest-xdist makes of this one.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]
HERE = f"(node {os.uname().nodename}, cpu)"


@pytest.fixture
def search_with(tmp_path, monkeypatch):
    """The evidence of a search among eight ranks; rank 2 has the fault, if any."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")

    def search_with(fault: str = "", timeout_s: float = 60):
        plan = Plan("cpu", 0, scratch=tmp_path, processes=8, inject=fault)
        results = local_world.run(plan, slow_rank_2, timeout_s=timeout_s)
        assert [bool(result) for result in results] == [True] + [False] * 7, "only rank 0 returns findings"
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
    ("fault", "sight"),
    [("slow-node", "GB/s"), ("corrupt-node", "wrong data")],
)
def test_a_bad_node_is_named_with_what_was_seen(search_with, fault, sight):
    found = search_with(fault)
    (reason,) = failures(found)
    assert reason.startswith(f"rank 2 {HERE} is bad: with rank ")
    assert reason.count(sight) == 3, "with three partners"


def test_a_bad_link_is_named_by_its_two_ends(search_with):
    found = search_with("slow-node-link")  # in the test of all: no pair of the screening
    (reason,) = failures(found)
    assert reason.startswith(f"the link between rank 2 {HERE} and rank 5 {HERE} is bad, both are good with others: ")


def test_a_node_that_hangs_is_named_and_the_search_goes_on(search_with):
    found = search_with("hung-node", timeout_s=6)
    (reason,) = failures(found)
    assert reason.startswith(f"rank 2 {HERE} is bad: with rank ")
    assert reason.count(": timed out") == 3


def test_a_connection_that_never_returns_does_not_hang_the_leader(search_with, monkeypatch):
    """As ncclCommInitRank, which knows no time-out, with a node that hangs before it. Here: every group with rank 2."""
    connect = group_test.GroupTest._group

    def hang(self, ranks, name):
        return time.sleep(600) if 2 in ranks else connect(self, ranks, name)

    monkeypatch.setattr(group_test.GroupTest, "_group", hang)
    start = time.monotonic()
    found = search_with("", timeout_s=4)
    assert time.monotonic() - start < 300
    assert [reason.partition(" is bad")[0] for reason in failures(found)] == [f"rank 2 {HERE}"]


def test_units_are_nodes_or_the_ranks_of_the_only_node():
    class RankContext:
        size, nodes = 8, 2

    assert search.units_of(RankContext) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    RankContext.nodes = 1
    assert search.units_of(RankContext) == [[rank] for rank in range(8)]


def test_a_pair_is_as_slow_as_its_slowest_rank():
    """Three nodes of two ranks; one of them pauses in each step."""
    units = [[0, 1], [2, 3], [4, 5]]
    steps = {0: [[0], [0, 2], [0, 1]], 1: [[1, 2], [1], [0, 1]], 2: [[1, 2], [0, 2], [2]]}
    posts = {rank: [[pair, 1.0] for pair in steps[rank // 2]] for rank in range(6)}
    posts[3][2] = [[0, 1], 4.0]
    posts[4][1] = [[0, 2], group_test.WRONG]
    assert group_test.outcome((0, 1, 2), units, posts, 8.0) == {(1, 2): 8.0, (0, 2): "wrong data", (0, 1): 2.0}


def test_the_first_to_fail_are_named_and_not_those_who_wait_for_them():
    units = [[rank] for rank in range(4)]
    first, second = ([0, 1], [2, 3]), ([0, 2], [1, 3])
    posts = {
        rank: [[next(pair for pair in step if rank in pair), 1.0] for step in (first, second)] for rank in range(4)
    }
    posts[2][1][1] = posts[0][1][1] = group_test.TIMED_OUT
    for rank in (1, 3):
        posts[rank].append([[0, 3] if rank == 3 else [1, 2], group_test.BROKEN])
    seen = group_test.outcome((0, 1, 2, 3), units, posts, 8.0)
    assert seen == {(0, 1): 8.0, (2, 3): 8.0, (1, 3): 8.0, (0, 2): group_test.TIMED_OUT}


def test_a_silent_rank_fails_all_pairs_of_its_node():
    posts = {0: [[[0, 1], 1.0]], 1: [[[0, 1], 1.0]], 2: None, 3: [[[0, 1], 1.0]]}
    assert group_test.outcome((0, 1), [[0, 1], [2, 3]], posts, 1.0) == {(0, 1): group_test.TIMED_OUT}
