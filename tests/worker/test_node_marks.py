"""What tests change on nodes: bounds, strikes, evidence for a release, and that nothing else is
touched.
"""

from __future__ import annotations

import copy
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuworker.fleet import marks
from gpuworker.fleet.marks import ACTIONS, HOLD, RECENT, STATE, UNFIT, Result, Rules, State, decide
from gpuworker.judgement import registry
from gpuworker.judgement.check_spec import LEVELS
from gpuworker.judgement.kinds import KINDS, Danger
from gpuworker.judgement.report import FAIL, INCOMPLETE, PASS, WARN
from tests.helpers.node_api import node_object, patched

NOW, HOUR = 1_767_600_000.0, 3600.0
WRONG, SLOW = "wrong-product", "slow"
OWN = "team/accept"


def said(verdict: str, at: float, kind: str = "", level: str = "quick", gpus: str = "") -> Result:
    return Result(float(at), verdict, level, gpus, kind)


class Cluster:
    """Nodes, and what patches of this installation make of them."""

    def __init__(
        self, names: list[str], action: str = "taint", owner: str = OWN, patrol: bool = False
    ) -> None:
        self.nodes = {name: node_object(name) for name in names}
        self.before = copy.deepcopy(self.nodes)
        self.rules = Rules(action, owner, patrol=patrol)

    def see(self, tests: dict[str, Result], now: float = NOW) -> tuple[dict[str, str], list[str]]:
        steps, shown, alerts = decide(list(self.nodes.values()), tests, self.rules, now)
        for step in steps:
            part = "status" if "status" in step.patch else ""
            self.nodes[step.node] = patched(self.nodes[step.node], step.patch, part)
        return shown | {step.node: step.action for step in steps}, alerts

    def marked(self) -> set[str]:
        return {name for name, node in self.nodes.items() if state(node).action}

    def one(self, *tests: Result) -> bool:
        """Whether the only node is marked after these tests, one after the other."""
        (name,) = self.nodes
        for test in tests:
            self.see({name: test}, test.at)
        return bool(self.marked())


def state(node: dict) -> State:
    return marks.state_of(node["metadata"]["annotations"].get(STATE, "{}"))


def others(node: dict) -> dict:
    """The node without what is ours."""
    rest = copy.deepcopy(node)
    del rest["metadata"]["resourceVersion"]
    rest["metadata"]["annotations"].pop(STATE, None)
    rest["metadata"]["labels"].pop(UNFIT, None)
    rest["spec"]["taints"] = [taint for taint in rest["spec"]["taints"] if taint["key"] != UNFIT]
    rest["status"]["conditions"] = [
        each for each in rest["status"]["conditions"] if each["type"] != marks.CONDITION
    ]
    return rest


def ours(node: dict) -> set[str]:
    """The marks that others see."""
    found = {"label"} if UNFIT in node["metadata"]["labels"] else set()
    found |= {"taint" for taint in node["spec"]["taints"] if taint["key"] == UNFIT}
    is_ours = [
        each["status"] for each in node["status"]["conditions"] if each["type"] == marks.CONDITION
    ]
    return found | ({"condition"} if is_ours == ["False"] else set())


@pytest.mark.parametrize(
    "kinds", [[WRONG], [kind for kind, each in KINDS.items() if each.danger <= Danger.SLOW]]
)
def test_false_verdicts_on_30_percent_of_1000_nodes_mark_at_most_the_bound_in_any_hour(
    kinds: list[str],
) -> None:
    chance = random.Random(len(kinds))
    names = [f"n{index}" for index in range(1000)]
    cluster, tests, marked_at, unlucky = Cluster(names), {}, {}, set(chance.sample(names, 300))
    for minute in range(0, 300, 5):  # reports come one by one, and twice in the end
        now = NOW + 60 * minute
        for name in chance.sample(names, 40):
            kind = chance.choice(kinds) if name in unlucky else ""
            tests[name] = said(FAIL if kind else PASS, now, kind)
        cluster.see(tests, now)
        for name in cluster.marked() - set(marked_at):
            marked_at[name] = now
        assert sum(now - at < HOUR for at in marked_at.values()) <= 50
    assert bool(marked_at) is (len(kinds) > 1), "what all have alike marks none"


def test_what_many_have_at_once_is_one_alert_and_no_mark() -> None:
    cluster = Cluster([f"n{index}" for index in range(100)])
    tests = {name: said(FAIL, NOW, WRONG) for name in list(cluster.nodes)[:6]}
    tests |= {name: said(PASS, NOW) for name in list(cluster.nodes)[6:]}
    shown, alerts = cluster.see(tests)
    assert not cluster.marked() and len(alerts) == 1
    assert {name for name, mark in shown.items() if mark == marks.SHARED} == set(
        list(cluster.nodes)[:6]
    )
    tests["n0"] = said(FAIL, NOW, "ecc")  # a fault of its own
    shown, alerts = cluster.see(tests)
    assert len(cluster.marked()) == 5 and not alerts and marks.BOUND in shown.values()


def test_the_worst_are_marked_first_and_the_rest_an_hour_later() -> None:
    cluster = Cluster(["a", "b"])
    tests = {"a": said(FAIL, NOW, "ecc"), "b": said(FAIL, NOW, WRONG)}
    shown, _ = cluster.see(tests)
    assert cluster.marked() == {"b"} and shown["a"] == marks.BOUND
    cluster.see(tests, NOW + HOUR - 1)
    assert cluster.marked() == {"b"}
    cluster.see(tests, NOW + HOUR)
    assert cluster.marked() == {"a", "b"}


STRIKES = {
    "wrong results": ([said(FAIL, 1, WRONG)], True),
    "a lost GPU": ([said(FAIL, 1, "gpu-lost")], True),
    "memory errors": ([said(FAIL, 1, "ecc")], True),
    "slow once": ([said(FAIL, 1, SLOW)], False),
    "the same test again": ([said(FAIL, 1, SLOW), said(FAIL, 1, SLOW)], False),
    "slow twice": ([said(FAIL, 1, SLOW), said(FAIL, 2, SLOW)], True),
    "a pass in between": ([said(FAIL, 1, SLOW), said(PASS, 2), said(FAIL, 3, SLOW)], False),
    "a shorter pass in between": (
        [said(FAIL, 1, SLOW, "full"), said(PASS, 2, level="quick"), said(FAIL, 3, SLOW, "full")],
        True,
    ),
    "a warning in between": ([said(FAIL, 1, SLOW), said(WARN, 2), said(FAIL, 3, SLOW)], True),
    "no fault of hardware": ([said(FAIL, 1), said(FAIL, 2)], False),
    "warnings": ([said(WARN, at, WRONG) for at in (1, 2, 3)], False),
    "no evidence": ([said(INCOMPLETE, at, WRONG) for at in (1, 2, 3)], False),
}  # fmt: skip


@pytest.mark.parametrize("name", STRIKES)
def test_strikes(name: str) -> None:
    tests, marked = STRIKES[name]
    assert Cluster(["n"]).one(*tests) is marked


def test_a_test_that_starts_in_the_future_says_nothing() -> None:
    cluster = Cluster(["n"])
    cluster.see({"n": said(FAIL, NOW + 400, WRONG)}, NOW)
    assert cluster.nodes == cluster.before


FAILED = said(FAIL, 10, WRONG, "full", "GPU-1 GPU-2")
RELEASES = {
    "a pass alone": ([said(PASS, 20, level="full", gpus="GPU-1 GPU-2")], "", False),
    "another boot": ([said(PASS, 20, level="full", gpus="GPU-1 GPU-2")], "boot-2", True),
    "another GPU": ([said(PASS, 20, level="full", gpus="GPU-1 GPU-3")], "", True),
    "a GPU less": ([said(PASS, 20, level="full", gpus="GPU-1")], "", False),
    "two passes an hour apart": ([said(PASS, 20, level="full"), said(PASS, 20 + HOUR, level="full")], "", True),
    "two passes in an hour": ([said(PASS, 20, level="full"), said(PASS, 19 + HOUR, level="full")], "", False),
    "a fail between them": (
        [said(PASS, 20, level="full"), said(FAIL, 30, SLOW), said(PASS, 20 + HOUR, level="full")],
        "",
        False,
    ),
    "a shorter test": ([said(PASS, 20, level="quick")], "boot-2", False),
    "a longer test": ([said(PASS, 20, level="burn-in")], "boot-2", True),
    "an older test": ([said(PASS, 5, level="full")], "boot-2", False),
    "a warning": ([said(WARN, 20, level="full")], "boot-2", False),
    "no evidence": ([said(INCOMPLETE, 20, level="full")], "boot-2", False),
}  # fmt: skip


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("name", RELEASES)
def test_a_mark_ends_by_newer_evidence_only_and_leaves_nothing(name: str, action: str) -> None:
    tests, boot, released = RELEASES[name]
    cluster = Cluster(["n"], action)
    assert cluster.one(FAILED) and ours(cluster.nodes["n"]) == {action} - {"record"}
    cluster.nodes["n"]["status"]["nodeInfo"]["bootID"] = boot or "boot-1"
    assert cluster.one(*tests) is not released
    assert ours(cluster.nodes["n"]) == (set() if released else {action} - {"record"})
    cluster.nodes["n"]["status"]["nodeInfo"]["bootID"] = "boot-1"
    assert others(cluster.nodes["n"]) == others(cluster.before["n"])


def test_a_hold_stops_both_directions() -> None:
    cluster = Cluster(["n"])
    cluster.nodes["n"]["metadata"]["annotations"][HOLD] = "true"
    before = copy.deepcopy(cluster.nodes)
    assert cluster.see({"n": FAILED})[0] == {"n": marks.HELD} and cluster.nodes == before
    del cluster.nodes["n"]["metadata"]["annotations"][HOLD]
    assert cluster.one(FAILED)
    cluster.nodes["n"]["metadata"]["annotations"][HOLD] = "true"
    cluster.nodes["n"]["status"]["nodeInfo"]["bootID"] = "boot-2"
    assert cluster.one(said(PASS, 20, level="full")), "it stays marked"


def test_the_mark_of_another_installation_stays() -> None:
    cluster = Cluster(["n"], owner="team/other")
    assert cluster.one(FAILED)
    cluster.rules = Rules("taint", OWN)
    cluster.nodes["n"]["status"]["nodeInfo"]["bootID"] = "boot-2"
    before = copy.deepcopy(cluster.nodes)
    shown, _ = cluster.see({"n": said(PASS, 20, level="full")})
    assert shown == {"n": marks.FOREIGN} and cluster.nodes == before


def test_a_condition_is_true_after_a_pass_and_stays_at_the_first_strike() -> None:
    cluster = Cluster(["n"], "condition")
    found = []
    for test in (said(PASS, 1), said(FAIL, 2, SLOW), said(FAIL, 3, SLOW)):
        cluster.see({"n": test}, test.at)
        conditions = cluster.nodes["n"]["status"]["conditions"]
        found += [each["status"] for each in conditions if each["type"] == marks.CONDITION]
    assert found == ["True", "True", "False"]


def test_a_mark_is_removed_as_it_was_made_also_when_the_value_has_changed() -> None:
    cluster = Cluster(["n"], "taint")
    assert cluster.one(FAILED)
    cluster.rules = Rules("label", OWN)
    cluster.nodes["n"]["status"]["nodeInfo"]["bootID"] = "boot-2"
    assert not cluster.one(said(PASS, 20, level="full")) and not ours(cluster.nodes["n"])


def test_a_node_that_changed_in_between_refuses_the_patch() -> None:
    cluster = Cluster(["n"])
    steps, _, _ = decide(cluster.nodes.values(), {"n": FAILED}, cluster.rules, NOW)
    assert [step.patch["metadata"]["resourceVersion"] for step in steps] == ["1"]


TESTS = st.builds(
    Result,
    st.floats(0, NOW),
    st.sampled_from((PASS, WARN, FAIL, INCOMPLETE)),
    st.sampled_from(marks.DEPTHS),
    st.sampled_from(("", "GPU-1", "GPU-1 GPU-2")),
    st.sampled_from(("", WRONG, SLOW)),
)


@given(st.lists(TESTS, max_size=8), st.sampled_from(ACTIONS))
def test_any_history_touches_only_what_is_ours_and_is_done_once(
    tests: list[Result], action: str
) -> None:
    cluster = Cluster(["n"], action)
    for test in tests:
        cluster.see({"n": test})
        node = cluster.nodes["n"]
        assert others(node) == others(cluster.before["n"])
        assert ours(node) == ({state(node).action} - {"", "record"})
        assert len(node["metadata"]["annotations"][STATE] if state(node).owner else "") < 1000
        if test.verdict != FAIL or not test.kind:
            continue
        assert not decide(cluster.nodes.values(), {"n": test}, cluster.rules, NOW)[0], (
            "nothing is left to do"
        )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
)


@given(
    st.text()
    | JSON.map(json.dumps)
    | st.fixed_dictionaries({}, optional=dict.fromkeys(vars(State()), JSON)).map(json.dumps)
)
def test_any_annotation_that_somebody_writes_is_left_alone_or_understood(text: str) -> None:
    cluster = Cluster(["n", "other"])
    cluster.nodes["n"]["metadata"]["annotations"][STATE] = text
    cluster.see({"n": FAILED, "other": FAILED._replace(kind="ecc")})
    if marks.state_of(text) is None:
        assert cluster.nodes["n"]["metadata"]["annotations"][STATE] == text
        assert cluster.nodes["other"] != cluster.before["other"]


def test_all_levels_are_known_and_in_the_order_of_their_depth() -> None:
    assert set(LEVELS) <= set(marks.DEPTHS)
    seconds = [registry.node_checks()["memory"].seconds.get(level, 0) for level in marks.DEPTHS]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_patrol_labels_the_nodes_by_how_recently_they_were_tested(action: str) -> None:
    names = [f"n{index:02}" for index in range(20)]
    cluster = Cluster(names, action, patrol=True)
    for index, name in enumerate(names):
        failed = index == 3  # its mark and its label are one patch
        test = said(FAIL, NOW + index, WRONG) if failed else said(PASS, NOW + index)
        cluster.see({name: test}, NOW + index)
    fifths = [cluster.nodes[name]["metadata"]["labels"][RECENT] for name in names]
    assert fifths == [str(index // 4) for index in range(20)] and cluster.marked() == {names[3]}
    assert not decide(cluster.nodes.values(), {}, cluster.rules, NOW + 60)[0]
    cluster.see({names[0]: said(WARN, NOW + 60)}, NOW + 60)
    assert cluster.nodes[names[0]]["metadata"]["labels"][RECENT] == "4", "it was tested, too"
