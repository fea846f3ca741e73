"""Barrier of a group of real processes: all ranks start or none, and replaced ranks rejoin."""

import time

import pytest

from gpuworker.group.barrier import format_missing
from tests.helpers.group_agents import codes
from tests.helpers.processes import until

pytestmark = pytest.mark.slow

THREE = {"buffer": {}, "trainer": {"numNodes": 2}}


def test_no_task_runs_before_the_last_rank_has_joined(group):
    group.write_plan(THREE)
    early = [group.start_rank("buffer-0", "echo ran"), group.start_rank("trainer-0", "echo ran")]
    last = (
        group.new_rank("trainer-1").publish_name().start_agent()
    )  # it has an address and an agent, but its image is still pulled
    for rank in early:
        rank.until_output("waits for the group")
    with pytest.raises(AssertionError):
        until(lambda: any("ran" in rank.output() for rank in early), "a task", deadline_s=3)
    last.start_task("echo ran")
    assert codes(*early, last) == [0, 0, 0]
    assert all("\nran\n" in rank.output() for rank in group.ranks)


def test_every_rank_gets_the_addresses_of_its_task(group):
    group.write_plan(THREE)
    ranks = [
        group.start_rank(host, 'echo "$SKYPILOT_NODE_IPS"')
        for host in ("buffer-0", "trainer-0", "trainer-1")
    ]
    assert codes(*ranks) == [0, 0, 0]
    trainers = f"{ranks[1].address}\n{ranks[2].address}\n"
    assert [trainers in rank.output() for rank in ranks] == [False, True, True]


@pytest.mark.parametrize("leader_joins", [True, False])
def test_at_the_join_timeout_every_rank_names_exactly_the_missing_ranks(group, leader_joins):
    group.write_plan({"buffer": {"numNodes": 2}, "trainer": {"numNodes": 3}}, timeout=4)
    joined = ["trainer-0", "trainer-1"] + (["buffer-0"] if leader_joins else [])
    waiting = [group.start_rank(host, "echo ran") for host in joined]
    group.new_rank("trainer-2").publish_name().start_agent()  # its container never starts
    start = time.monotonic()
    assert codes(*waiting) == [66] * len(waiting)
    assert time.monotonic() - start < 30
    unresolved = ["buffer-1"] if leader_joins else ["buffer-0", "buffer-1"]
    for rank in waiting:
        assert format_missing(unresolved, ["trainer-2"]) in rank.output()
        assert "\nran" not in rank.output()


@pytest.mark.parametrize("unfit", ["buffer-0", "trainer-1"])
def test_an_unfit_node_ends_the_wait_of_all_at_once(group, unfit):
    """With plain Jobs; a JobSet ends the pods itself. One rank has not even a name."""
    group.write_plan(THREE, workload="jobs", timeout=120)
    hosts = ["buffer-0", "trainer-0", "trainer-1"]
    missing = next(host for host in reversed(hosts) if host != unfit)
    waiting = [group.start_rank(host, "echo ran") for host in hosts if host not in (unfit, missing)]
    for rank in waiting:
        rank.until_output("waits for the group")
    begin, last = time.monotonic(), group.new_rank(unfit).publish_name().start_agent()
    (last.root / "programs").mkdir()
    (last.root / "programs/accept-node").write_text("raise SystemExit(72)")
    last.start_task("echo ran", GPU_CHARTS_NODE_TEST="gate")
    assert codes(*waiting, last) == [1, 72]
    assert time.monotonic() - begin < 40
    assert f"failed {unfit} 72" in waiting[0].output() and "\nran" not in waiting[0].output()


@pytest.mark.parametrize("lost", ["buffer-0", "trainer-1"])
def test_a_replaced_rank_rejoins_a_running_group(group, lost):
    group.write_plan(THREE)
    ranks = {
        host: group.start_rank(host, "echo ran; sleep 600")
        for host in ("buffer-0", "trainer-0", "trainer-1")
    }
    for rank in ranks.values():
        rank.until_output("\nran")
    ranks[lost].lose()
    group.start_rank(lost, "echo ran").until_output("\nran")


def test_a_replaced_rank_rejoins_after_the_leader_has_ended(group):
    group.write_plan(THREE)
    first = group.start_rank("buffer-0", "true")
    others = [group.start_rank(host, "echo ran; sleep 600") for host in ("trainer-0", "trainer-1")]
    assert first.wait() == 0
    others[0].until_output("\nran")
    others[0].lose()
    group.start_rank("trainer-0", "echo ran").until_output("\nran")


def test_a_rank_of_another_attempt_does_not_count(group):
    group.write_plan({"buffer": {}, "trainer": {}}, timeout=3)
    group.start_rank("trainer-0", "echo ran")
    new = group.start_rank("buffer-0", "echo ran", attempt="1")
    assert new.wait() == 66
    assert format_missing([], ["trainer-0"]) in new.output()


def test_a_restarted_agent_keeps_the_state_of_the_group(group):
    group.write_plan({"buffer": {}, "trainer": {}})
    ranks = [group.start_rank(host, "echo ran; sleep 600") for host in ("buffer-0", "trainer-0")]
    for rank in ranks:
        rank.until_output("\nran")
        rank.kill_agent()
    ranks[1].start_agent()
    ranks[0].lose()
    group.start_rank("buffer-0", "echo ran").until_output("\nran")
