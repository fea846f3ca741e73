"""Bad-node search on simulated faults: every fault is found, no healthy node is accused."""

import random

import pytest

from gpuworker.accept.checks.bad_nodes import plan
from gpuworker.judgement.report import INCOMPLETE
from tests.scale.bad_node_search import HUNG, Fabric, accused, search

HEALTHY = 48.0


def slow_if(condition):
    """A test in which the pairs are slow for which the condition holds."""
    return lambda pair: HEALTHY / 3 if condition({*pair}) else HEALTHY


@pytest.mark.parametrize("bad_links", [0, 2])
@pytest.mark.parametrize("bad_nodes", [0, 1, 5])
def test_64_nodes_all_faults_are_named_and_nothing_else(bad_nodes, bad_links):
    """Slow, wrong and hanging parts; a healthy measurement varies by 5 %."""
    for seed in range(10):
        fabric = Fabric.draw(64, bad_nodes, bad_links, seed)
        findings, rounds = search(64, fabric.test)
        assert fabric.is_named(findings), (seed, fabric, findings)
        assert len(rounds) <= 63 + 2


@pytest.mark.slow
def test_no_healthy_part_is_accused_in_400_worlds_of_any_size():
    """And everything is named while the bad ones are few: up to a sixth of the nodes, and one link."""
    dice = random.Random(1)
    for seed in range(400):
        nodes = dice.randint(4, 64)
        fabric = Fabric.draw(nodes, dice.randint(0, min(5, nodes // 6)), dice.randint(0, 1), seed)
        findings, _ = search(nodes, fabric.test)
        assert fabric.is_named(findings), (seed, nodes, fabric, findings)


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 7, 10, 17])
def test_every_pair_is_tested_and_no_node_is_in_two_of_a_round(nodes):
    findings, rounds = search(nodes, slow_if(lambda _: False))
    pairs = [pair for round_ in rounds for pair in round_]
    assert set(pairs) == {(a, b) for a in range(nodes) for b in range(a + 1, nodes)}
    assert nodes < 4 or len(set(pairs)) == len(pairs)
    assert all(
        len({node for pair in round_ for node in pair}) == 2 * len(round_) for round_ in rounds
    )
    assert not findings.problems


def test_a_large_fleet_has_a_bounded_number_of_rounds(monkeypatch):
    monkeypatch.setattr(plan, "MOST_ROUNDS", 10)
    findings, rounds = search(200, slow_if(lambda pair: 5 in pair))
    assert (accused(findings), len(rounds)) == ({(5,)}, 10)


def test_a_bad_node_and_a_bad_link_are_distinguished():
    assert accused(search(16, slow_if(lambda pair: 5 in pair))[0]) == {(5,)}
    link, _ = search(16, slow_if(lambda pair: {5, 11} <= pair))
    assert [(each.kind, each.parts) for each in link.problems] == [("bad-link", ["5", "11"])]
    several = {(0, 3), (0, 7), (0, 9)}
    assert accused(search(16, slow_if(lambda pair: tuple(sorted(pair)) in several))[0]) == several


def test_one_slow_exchange_accuses_nothing():
    """A single bad outcome, which the pair alone does not confirm."""
    hiccups = iter([True])
    findings, _ = search(16, slow_if(lambda _: next(hiccups, False)))
    assert not findings.problems


def test_a_node_that_hangs_is_waited_for_three_times_only():
    waits = []
    findings, _ = search(16, lambda pair: (waits.append(pair), HUNG)[1] if 3 in pair else HEALTHY)
    assert (accused(findings), len(waits)) == ({(3,)}, 3)


def test_of_two_nodes_the_bad_one_cannot_be_identified():
    findings, _ = search(2, lambda _: HUNG)
    assert [problem.verdict for problem in findings.problems] == [INCOMPLETE]
    with pytest.raises(ValueError, match="at least two"):
        search(1, lambda _: HUNG)


def test_a_slow_majority_accuses_nobody():
    """Six of nine are slow."""
    factors = {node: 0.5 + node / 100 for node in (0, 1, 2, 3, 4, 8)}

    def test(pair):
        return HEALTHY * min(factors.get(node, 1.0) for node in pair)

    assert not accused(search(9, test)[0])
    findings, _ = search(9, test, expected_gbps=HEALTHY)
    assert [problem.verdict for problem in findings.problems] == [INCOMPLETE]
