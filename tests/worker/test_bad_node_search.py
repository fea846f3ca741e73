"""Bad-node search on simulated faults: every fault is found, no healthy node is accused."""

import math
import random

import pytest

from gpuworker.accept.checks.bad_nodes.findings import Outcome
from gpuworker.accept.checks.bad_nodes.search_plan import BadNodeSearch
from tests.scale.bad_node_search import Fabric, search

HEALTHY = 48.0


def run(nodes: int, test, **options):
    """Findings of a plan, and all rounds; `test(group)` gives an Outcome."""
    plan, rounds = BadNodeSearch(nodes, **options), []
    while groups := plan.next_round():
        rounds.append(groups)
        plan.record([test(group) for group in groups])
        assert len(rounds) < 500
    return plan.findings, rounds


def slow_if(condition):
    return lambda group: Outcome(HEALTHY / 3 if condition(set(group)) else HEALTHY)


@pytest.mark.parametrize("bad_links", [0, 1, 2])
@pytest.mark.parametrize("bad_nodes", range(6))
def test_512_nodes_all_faults_are_named_and_nothing_else(bad_nodes, bad_links):
    """Slow, wrong and hanging parts; a healthy measurement varies by 5 %."""
    for seed in range(15):
        fabric = Fabric.draw(512, bad_nodes, bad_links, seed)
        findings = search(512, fabric)
        assert fabric.is_named(findings), (seed, fabric, findings)
        # Two rounds screen, three confirm nodes; a link takes two bisections of at most log2(n) and three exchanges.
        logarithm = math.log2(512)
        assert findings.rounds <= 6 + 1 + bad_links * (2 * logarithm + 9)


@pytest.mark.slow
def test_no_healthy_part_is_accused_in_2000_worlds_of_any_size():
    """While the bad ones are few, everything is also named: up to a sixth of the nodes, and one link."""
    dice, named = random.Random(1), 0
    for seed in range(2000):
        nodes = dice.randint(4, 64)
        fabric = Fabric.draw(nodes, dice.randint(0, min(5, nodes // 6)), dice.randint(0, 1), seed, dice.random() < 0.5)
        findings = search(nodes, fabric)
        assert fabric.false_accusations(findings) == [], (seed, nodes, fabric, findings)
        named += fabric.is_named(findings)
    assert named == 2000


def test_it_takes_fewer_tests_than_the_groups_of_a_known_system():
    """NVIDIA's cluster-readiness-engine gives 22 to 57 tests for 232 nodes (design 055); all pairs would be 26,796."""
    healthy = search(232, Fabric.draw(232, 0, 0, 0))
    one_bad = [search(232, Fabric.draw(232, 1, 0, seed)) for seed in range(20)]
    assert (healthy.rounds, healthy.tests) == (3, 32)
    assert {findings.rounds for findings in one_bad} == {6}
    assert max(findings.tests for findings in one_bad) <= 36


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 7, 10, 17, 512])
def test_groups_of_a_round_are_disjoint_and_no_node_is_left_out(nodes):
    findings, rounds = run(nodes, lambda group: Outcome(HEALTHY))
    for groups in rounds:
        members = [node for group in groups for node in group]
        assert len(members) == len(set(members))
        assert all(len(group) >= 2 for group in groups)
    tested = {node for groups in rounds for group in groups for node in group}
    assert tested == set(range(nodes))
    assert not findings.faults and not findings.unexplained


def test_a_bad_node_and_a_bad_link_are_distinguished():
    node, _ = run(16, slow_if(lambda group: 5 in group))
    link, _ = run(16, slow_if(lambda group: {5, 11} <= group))
    assert (list(node.bad_nodes), list(node.bad_links)) == ([5], [])
    assert (list(link.bad_nodes), list(link.bad_links)) == ([], [(5, 11)])
    assert link.bad_links[5, 11] == "16 GB/s, 16 GB/s, 16 GB/s"


def test_a_bad_link_to_a_confirming_partner_does_not_make_a_bad_node():
    """Node 0 is in no good group at first: its row and its column each hold a bad link of its own."""
    findings, _ = run(16, slow_if(lambda group: {0, 1} <= group or {0, 4} <= group))
    assert (findings.bad_nodes, set(findings.bad_links)) == ({}, {(0, 1), (0, 4)})


def test_one_slow_exchange_accuses_no_node():
    """A single bad outcome, that no further test confirms."""
    hiccups = iter([True])
    findings, _ = run(16, lambda group: Outcome(HEALTHY / 4 if next(hiccups, False) else HEALTHY))
    assert findings.faults == 0


def test_hints_shorten_the_search_and_prove_nothing():
    def test(group):
        bad = {3, 9} <= set(group)
        return Outcome(HEALTHY / 3 if bad else HEALTHY, hints=((3, 9), (1, 2)) if bad else ())

    findings, rounds = run(64, test)
    assert set(findings.bad_links) == {(3, 9)}
    unhinted, slow_rounds = run(64, slow_if(lambda group: {3, 9} <= group))
    assert set(unhinted.bad_links) == {(3, 9)}
    assert len(rounds) < len(slow_rounds)


def test_a_network_that_is_slow_for_many_nodes_accuses_no_node():
    """An oversubscribed network: slow when more than eight talk at the same time."""
    findings, _ = run(16, lambda group: Outcome(HEALTHY if len(group) <= 8 else HEALTHY / 2))
    assert findings.faults == 0
    assert findings.unexplained == ["no single node or link explains this: 16 nodes together: 24 GB/s"]


def test_of_two_nodes_the_bad_one_cannot_be_identified():
    findings, _ = run(2, lambda group: Outcome(0, "timed out"))
    assert (findings.bad_nodes, findings.bad_links) == ({}, {})
    assert list(findings.undecided) == [(0, 1)]
    assert "timed out" in findings.undecided[0, 1]


def test_a_slow_majority_does_not_accuse_the_healthy_rest():
    """Six of nine are slow: the reference is doubtful."""
    bad = {0, 1, 2, 3, 4, 8}
    factors = {node: 0.5 + node / 100 for node in bad}
    test = lambda group: Outcome(HEALTHY * min(factors.get(node, 1.0) for node in group))  # noqa: E731
    findings, _ = run(9, test)
    assert set(findings.bad_nodes) <= bad
    findings, _ = run(9, test, expected_gbps=HEALTHY)
    assert set(findings.bad_nodes) in (set(), bad), "with an absolute limit all of them, or undecided"


def test_one_node_cannot_be_searched():
    with pytest.raises(ValueError, match="at least two"):
        BadNodeSearch(1)
