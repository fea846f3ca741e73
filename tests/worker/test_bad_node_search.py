"""Bad-node search on simulated faults: every fault is found, no healthy node is accused."""

import itertools
import random

import pytest

from gpuworker.accept.checks.bad_nodes.plan import BadNodeSearch, rounds_of_pairs
from tests.scale.bad_node_search import Fabric, nodes_of, search

HEALTHY = 48.0


def slow_if(condition):
    """A test of a group in which the pairs are slow for which the condition holds."""
    return lambda group: {
        pair: HEALTHY / 3 if condition(set(pair)) else HEALTHY for pair in itertools.combinations(group, 2)
    }


@pytest.mark.parametrize("bad_links", [0, 1, 2])
@pytest.mark.parametrize("bad_nodes", range(6))
def test_128_nodes_all_faults_are_named_and_nothing_else(bad_nodes, bad_links):
    """Slow, wrong and hanging parts; a healthy measurement varies by 5 %."""
    for seed in range(15):
        fabric = Fabric.draw(128, bad_nodes, bad_links, seed)
        findings, rounds = search(128, fabric.test)
        assert fabric.is_named(findings), (seed, fabric, findings)
        # Three rounds screen, three confirm nodes, two each link; each link that hangs repeats the last test.
        assert len(rounds) <= 3 + 4 + 3 + bad_links * 6


@pytest.mark.slow
def test_no_healthy_part_is_accused_in_2000_worlds_of_any_size():
    """While the bad ones are few, everything is also named: up to a sixth of the nodes, and one link."""
    dice, named = random.Random(1), 0
    for seed in range(2000):
        nodes = dice.randint(4, 64)
        fabric = Fabric.draw(nodes, dice.randint(0, min(5, nodes // 6)), dice.randint(0, 1), seed)
        findings, _ = search(nodes, fabric.test)
        assert fabric.false_accusations(findings) == [], (seed, nodes, fabric, findings)
        named += fabric.is_named(findings)
    assert named == 2000


def test_it_takes_fewer_rounds_than_the_groups_of_a_known_system():
    """NVIDIA's cluster-readiness-engine gives 22 to 57 tests for 232 nodes (design 055); all pairs would be 231."""
    _, healthy = search(232, Fabric.draw(232, 0, 0, 0).test)
    one_bad = [len(search(232, Fabric.draw(232, 1, 0, seed).test)[1]) for seed in range(20)]
    assert len(healthy) == 4
    assert max(one_bad) <= 7


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 7, 10, 17, 64])
def test_groups_of_a_round_are_disjoint_and_no_pair_is_left_out(nodes):
    findings, rounds = search(nodes, slow_if(lambda _: False))
    for groups in rounds:
        members = [node for group in groups for node in group]
        assert len(members) == len(set(members))
        assert all(len(group) >= 2 for group in groups)
    assert rounds[-1] == [tuple(range(nodes))]
    assert not (findings.bad_nodes or findings.bad_links or findings.undecided or findings.unexplained)


@pytest.mark.parametrize("count", range(2, 17))
def test_rounds_have_every_pair_once_and_no_device_twice(count):
    rounds = rounds_of_pairs(count)
    pairs = [pair for round_ in rounds for pair in round_]
    assert sorted(pairs) == [(a, b) for a in range(count) for b in range(a + 1, count)]
    assert len(rounds) == count - 1 + count % 2
    for round_ in rounds:
        busy = [device for pair in round_ for device in pair]
        assert len(busy) == len(set(busy))


def test_a_bad_node_and_a_bad_link_are_distinguished():
    node, _ = search(16, slow_if(lambda pair: 5 in pair))
    link, _ = search(16, slow_if(lambda pair: {5, 11} <= pair))
    assert (nodes_of(node), list(node.bad_links)) == ({5}, [])
    assert (nodes_of(link), list(link.bad_links)) == (set(), [(5, 11)])
    assert link.bad_links[5, 11] == "16 GB/s, 16 GB/s, 16 GB/s"


def test_bad_links_to_all_first_partners_do_not_make_a_bad_node():
    """Node 0 is in no good pair at first."""
    first = [pair for groups in search(16, slow_if(lambda _: False))[1][:3] for pair in groups if 0 in pair]
    findings, _ = search(16, slow_if(lambda pair: tuple(sorted(pair)) in first))
    assert (findings.bad_nodes, sorted(findings.bad_links)) == ({}, sorted(first))


def test_one_slow_exchange_accuses_no_node():
    """A single bad outcome, that no further test confirms."""
    hiccups = iter([True])
    findings, _ = search(16, slow_if(lambda _: next(hiccups, False)))
    assert not (findings.bad_nodes or findings.bad_links or findings.undecided or findings.unexplained)


def test_a_network_that_is_slow_for_many_nodes_accuses_no_node():
    """An oversubscribed network: slow when more than eight talk at the same time."""

    def test(group):
        return {pair: HEALTHY if len(group) <= 8 else HEALTHY / 2 for pair in itertools.combinations(group, 2)}

    findings, _ = search(16, test)
    assert not (findings.bad_nodes or findings.bad_links or findings.undecided)
    assert findings.unexplained == ["no single node or link explains this: 16 nodes together: 120 of 120 pairs are bad"]


def test_a_node_that_hangs_in_the_test_of_all_is_named():
    hangs = []

    def test(group):
        hangs.append(len(group) > 2)
        hung = any(hangs) and 3 in group
        pairs = [pair for pair in itertools.combinations(group, 2) if 3 in pair or not hung]
        return dict.fromkeys(pairs, "timed out" if hung else HEALTHY)

    findings, _ = search(8, test)
    assert (nodes_of(findings), findings.bad_links, findings.unexplained) == ({3}, {}, [])


def test_of_two_nodes_the_bad_one_cannot_be_identified():
    findings, _ = search(2, lambda group: {group: "timed out"})
    assert (findings.bad_nodes, findings.bad_links) == ({}, {})
    assert list(findings.undecided) == [(0, 1)]
    assert "timed out" in findings.undecided[0, 1]


def test_a_slow_majority_does_not_accuse_the_healthy_rest():
    """Six of nine are slow: the reference is doubtful."""
    factors = {node: 0.5 + node / 100 for node in (0, 1, 2, 3, 4, 8)}

    def test(group):
        return {
            pair: HEALTHY * min(factors.get(node, 1.0) for node in pair) for pair in itertools.combinations(group, 2)
        }

    findings, _ = search(9, test)
    assert nodes_of(findings) <= set(factors)
    findings, _ = search(9, test, expected_gbps=HEALTHY)
    assert nodes_of(findings) in (set(), set(factors)), "with an absolute limit all of them, or undecided"


def test_one_node_cannot_be_searched():
    with pytest.raises(ValueError, match="at least two"):
        BadNodeSearch(1)
