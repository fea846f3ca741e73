"""Port of a group's agent under bytes that no agent sends: bounded memory, no traceback, no change
of the group.
"""

import contextlib
import itertools
import resource
import socket
import threading
import time
from pathlib import Path

import pytest

from gpuworker.group.group_state import GroupPlan, GroupState, Task
from gpuworker.group.protocol import CODEC, Reply, Request
from gpuworker.group.rank_server import MAX_STRANGERS
from gpuworker.runtime.contract import GROUP_AGENT_PORT
from gpuworker.runtime.json_lines import encode
from tests.helpers.group_agents import codes
from tests.helpers.hostile_messages import peak_mib
from tests.helpers.processes import until

pytestmark = pytest.mark.slow
MEMORY_MIB = 60  # an idle agent has about 25


@pytest.fixture
def group(group):
    group.write_plan({"buffer": {}, "trainer": {"numNodes": 2}})
    return group


@pytest.fixture
def leader(group):
    """The first rank, at the barrier."""
    rank = group.start_rank("buffer-0", "echo ran")
    until(lambda: dial(rank), "the leader listens").close()
    return rank


def dial(rank) -> socket.socket | None:
    with contextlib.suppress(ConnectionError):
        return socket.create_connection((rank.address, GROUP_AGENT_PORT), timeout=5)
    return None


def send(rank, *parts: bytes) -> bytes:
    """Everything that the agent replies until it closes the connection."""
    connection = dial(rank)
    connection.settimeout(10)
    with connection, contextlib.suppress(ConnectionError):
        for part in parts:
            connection.sendall(part)
        with contextlib.suppress(OSError):  # the agent was faster
            connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))
    return b""


def completes(group, leader):
    """The other ranks join, and the group runs to its end."""
    others = [group.start_rank(host, "echo ran") for host in ("trainer-0", "trainer-1")]
    assert codes(*others, leader) == [0, 0, 0]
    assert "Traceback" not in leader.output("agent"), leader.output("agent")
    assert len(leader.output("agent").splitlines()) < 10, "strangers do not fill the log"


def request(fields: str) -> bytes:
    """A request of trainer-0 with these fields, too, as JSON."""
    return encode(Request("rl-1", "0", "trainer-0")).replace(b"}\n", f", {fields[1:]}\n".encode())


def test_a_flood_of_connections_leaves_the_agent_the_descriptors_for_its_own_work(group):
    """It must still open connections to others and files, with a limit that it cannot raise."""
    rank = group.new_rank("buffer-0").publish_name().start_agent()
    resource.prlimit(rank.sidecar.pid, resource.RLIMIT_NOFILE, (1024, 1024))
    rank.start_task("until [ -e go ]; do sleep 0.1; done; echo ran")
    until(lambda: dial(rank), "the leader listens").close()
    others = [
        group.start_rank(host, "until [ -e ../../../go ]; do sleep 0.1; done")
        for host in ("trainer-0", "trainer-1")
    ]
    stop, most, descriptors = threading.Event(), [0], Path(f"/proc/{rank.sidecar.pid}/fd")

    def flood():
        with contextlib.ExitStack() as held:
            while not stop.is_set():
                with contextlib.suppress(OSError):
                    for _ in range(200):
                        held.enter_context(
                            socket.create_connection((rank.address, GROUP_AGENT_PORT), timeout=5)
                        )
                    most[0] = max(most[0], len(list(descriptors.iterdir())))
                held.pop_all().close()

    threads = [threading.Thread(target=flood) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for each in (rank, *others):
            each.until_output("starts attempt")  # they passed the barrier
        rank.touch("go")
        assert rank.wait() == 0
        (group.folder / "go").touch()
        assert codes(*others) == [0, 0]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert most[0] < 1024 - 320, "what the agent needs itself is free"
    assert "Traceback" not in rank.output("agent"), rank.output("agent")


def test_many_connections_of_one_rank_count_as_one(group, leader):
    """They have the group's identity, so they are held until the group is released."""
    with contextlib.ExitStack() as held:
        for _ in range(300):
            held.enter_context(dial(leader)).sendall(request('{"joined": true}'))
        time.sleep(1)
        assert len(list(Path(f"/proc/{leader.sidecar.pid}/fd").iterdir())) < MAX_STRANGERS
        assert peak_mib(leader.sidecar.pid) < MEMORY_MIB


# With the group's identity, but with contents that no agent sends.
INVALID = """\
{"state": {"released": true, "done": [3]}}
{"state": {"released": true, "started": [["buffer-0"]]}}
{"state": {"released": true, "failed": {"buffer-0": "x"}}}
{"state": {"released": true, "failed": {"buffer-0": 1e400}}}
{"state": {"released": true, "failed": {"buffer-0": 0}}}
{"state": {"released": true, "failed": {"buffer-0": 10000000000000000000000000000000000000000}}}
{"state": {"released": true, "failed": {"buffer-0": true}}}
{"state": {"released": "yes"}}
{"state": null}
{"missing": ["x"]}
{"attempt": 0}
{"joined": "yes"}
{"type": "Go"}
{"type": []}
"""


# Everything that ends, holds, starts or falsifies a group whose run and attempt are known.
FORGED = """\
{"state": {"released": true}}
{"state": {"failed": {"trainer-0": 7}}}
{"state": {"done": ["trainer-0", "trainer-1", "buffer-0"]}}
{"state": {"started": ["trainer-0"]}}
{"missing": "forged"}
{"joined": true}
"""


def test_invalid_contents_get_no_reply_and_no_traceback(group, leader):
    for fields in INVALID.splitlines():
        assert send(leader, request(fields)) == b"", fields
    completes(group, leader)


def test_a_text_of_another_agent_is_printable(group, leader):
    send(leader, request(r'{"missing": "\ud800\n[FATAL] forged\u001b[2J"}'))
    assert leader.wait() == 66
    assert "\n[FATAL] forged" not in leader.output()
    assert "Traceback" not in leader.output("agent")


def test_the_longest_message_of_a_group_fits():
    hosts = tuple(f"{'t' * 50}-{rank}" for rank in range(1024))
    plan = GroupPlan("rl", 60, True, False, {"t": Task("t", hosts)})
    state = GroupState(True, list(hosts), list(hosts), dict.fromkeys(hosts, 255))
    text = ", ".join(hosts) + "x" * 1000
    assert len(encode(Request("r" * 63, "99999", hosts[-1], state, True, text))) < plan.line_limit
    assert CODEC.decode(encode(Reply(state, True, text))) == Reply(state, True, text)


def test_with_a_key_the_groups_identity_is_not_enough(group):
    group.set_key(b"k" * 32)
    waits = "until [ -e ../../../stop ]; do sleep 0.1; done"
    ranks = [group.start_rank("buffer-0", waits)]

    def forge():
        nonce = b"0" * 32 + b"\n"
        for rank, fields in itertools.product(ranks, FORGED.splitlines()):
            for parts in ([], [nonce], [nonce, b"0" * 64 + b" "]):
                assert b"{" not in send(rank, *parts, request(fields)), (
                    "the agent answers a stranger"
                )

    until(lambda: dial(ranks[0]), "the leader listens").close()
    forge()
    assert "starts attempt" not in ranks[0].output(), "a stranger released the group"
    ranks += [group.start_rank(f"trainer-{number}", waits) for number in (0, 1)]
    until(lambda: all("starts attempt" in rank.output() for rank in ranks), "the group runs")
    forge()
    (group.folder / "stop").touch()
    assert codes(*ranks) == [0, 0, 0]


@pytest.mark.parametrize("key", [b"short", None])
def test_a_key_that_cannot_be_used_ends_the_task(group, key):
    if key:
        group.set_key(key)
    else:
        group.agent_settings["GPU_CHARTS_KEY_FILE"] = group.folder / "no-file"
    assert group.start_rank("buffer-0", "echo ran").wait() == 2
    assert "\nran" not in group.ranks[0].output()
