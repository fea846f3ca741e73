"""group-agent and the entry script: all ranks or none, also for ranks that come back."""

from __future__ import annotations

import socket
import time

import pytest

from gpuworker.group.peers import PORT
from tests.helpers.group_agents import Group
from tests.helpers.processes import until

pytestmark = pytest.mark.slow

THREE = {"buffer": {}, "trainer": {"numNodes": 2}}


@pytest.fixture
def group(tmp_path):
    group = Group(tmp_path)
    yield group
    for rank in group.ranks:
        rank.lose()


def test_no_task_runs_before_the_last_rank_is_there(group):
    group.is_planned(THREE)
    early = [group.runs("buffer-0", "echo ran"), group.runs("trainer-0", "echo ran")]
    last = group.rank("trainer-1").name().agent()  # it has an address and an agent, but its image is still pulled
    for rank in early:
        rank.until_said("waits for the group")
    with pytest.raises(AssertionError):
        until(lambda: any("ran" in rank.said() for rank in early), "a task", deadline_s=3)
    last.task("echo ran")
    assert [rank.ends() for rank in (*early, last)] == [0, 0, 0]
    assert all("\nran\n" in rank.said() for rank in group.ranks)


def test_every_rank_knows_the_addresses_of_its_task(group):
    group.is_planned(THREE)
    ranks = [group.runs(host, 'echo "$SKYPILOT_NODE_IPS"') for host in ("buffer-0", "trainer-0", "trainer-1")]
    assert [rank.ends() for rank in ranks] == [0, 0, 0]
    trainers = f"{ranks[1].address}\n{ranks[2].address}\n"
    assert [trainers in rank.said() for rank in ranks] == [False, True, True]


@pytest.mark.parametrize("leader_is_there", [True, False])
def test_at_the_deadline_every_rank_names_exactly_the_missing_ones(group, leader_is_there):
    group.is_planned({"buffer": {"numNodes": 2}, "trainer": {"numNodes": 3}}, timeout=4)
    there = ["trainer-0", "trainer-1"] + (["buffer-0"] if leader_is_there else [])
    waiting = [group.runs(host, "echo ran") for host in there]
    group.rank("trainer-2").name().agent()  # its container never starts
    start = time.monotonic()
    assert [rank.ends() for rank in waiting] == [66] * len(waiting)
    assert time.monotonic() - start < 30
    nowhere = "buffer-1" if leader_is_there else "buffer-0, buffer-1"
    for rank in waiting:
        assert f"no pod with an address for {nowhere} (not scheduled, or not created)" in rank.said()
        assert "trainer-2 did not start (image pull? crash?)" in rank.said()
        assert "trainer-1 did not" not in rank.said()
        assert "trainer-0 did not" not in rank.said()
        assert "\nran" not in rank.said()


@pytest.mark.parametrize("lost", ["buffer-0", "trainer-1"])
def test_a_rank_that_comes_back_meets_a_running_group(group, lost):
    group.is_planned(THREE)
    ranks = {host: group.runs(host, "echo ran; sleep 600") for host in ("buffer-0", "trainer-0", "trainer-1")}
    for rank in ranks.values():
        rank.until_said("\nran")
    ranks[lost].lose()
    group.runs(lost, "echo ran").until_said("\nran")


def test_it_comes_back_also_when_the_first_rank_has_ended(group):
    group.is_planned(THREE)
    first = group.runs("buffer-0", "true")
    others = [group.runs(host, "echo ran; sleep 600") for host in ("trainer-0", "trainer-1")]
    assert first.ends() == 0
    others[0].until_said("\nran")
    others[0].lose()
    group.runs("trainer-0", "echo ran").until_said("\nran")


def test_with_logs_on_a_volume_it_comes_back_also_when_it_is_the_last(group, tmp_path):
    group.logs = tmp_path / "logs"
    group.is_planned({"buffer": {}, "trainer": {}})
    first, last = group.runs("buffer-0"), group.runs("trainer-0", "echo ran; sleep 600")
    assert first.ends() == 0
    last.until_said("\nran")
    last.lose()
    assert group.runs("trainer-0", "echo ran again").ends() == 0


def test_a_rank_of_another_attempt_does_not_count(group):
    group.is_planned({"buffer": {}, "trainer": {}}, timeout=3)
    group.rank("trainer-0", attempt="0").name().agent().task("echo ran")
    new = group.rank("buffer-0", attempt="1").name().agent().task("echo ran")
    assert new.ends() == 66
    assert "trainer-0 did not start" in new.said()


def test_an_agent_that_is_restarted_remembers(group):
    group.is_planned({"buffer": {}, "trainer": {}})
    ranks = [group.runs("buffer-0", "echo ran; sleep 600"), group.runs("trainer-0", "echo ran; sleep 600")]
    for rank in ranks:
        rank.until_said("\nran")
        rank.sidecar.kill()
        rank.sidecar.wait()
    ranks[1].agent()
    ranks[0].lose()
    group.runs("buffer-0", "echo ran").until_said("\nran")


def test_strangers_do_not_disturb(group):
    group.is_planned({"buffer": {}, "trainer": {}})
    leader = group.runs("buffer-0", "echo ran")
    until(lambda: "deadline_s" in leader.said("agent"), "the leader's agent runs")
    rude = [b"", b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 100, b"[]\n", b'{"run": "rl-1", "attempt": "0", "facts": 3}\n']
    rude += [b'{"run": "rl-1", "attempt": "0", "rank": "nobody-0", "here": true}\n', b"x" * (2 << 20)]
    held = [until(lambda words=words: dial(leader.address, words), "the leader listens") for words in rude]
    assert group.runs("trainer-0", "echo ran").ends() == 0
    assert leader.ends() == 0
    for connection in held:
        connection.close()


def dial(address: str, words: bytes = b"") -> socket.socket | None:
    try:
        connection = socket.create_connection((address, PORT), timeout=5)
        connection.sendall(words)
        return connection
    except ConnectionError:
        return None
