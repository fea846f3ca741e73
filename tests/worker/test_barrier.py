"""group-barrier: all ranks or none, over real connections on loopback."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from processes import free_port, until

from gpuworker.launch import barrier
from gpuworker.launch.barrier import Missing, follow, lead, resolve_all

DOMAIN = "rl.default.svc.cluster.local"
NAMES = ["trainer-0", "trainer-1", "rollout-0"]


@pytest.fixture(autouse=True)
def port(monkeypatch) -> int:
    number = free_port()
    monkeypatch.setattr(barrier, "PORT", number)
    return number


@pytest.fixture
def known(monkeypatch) -> dict[str, str]:
    """The names that DNS knows, with their addresses; every other name of the group is not found."""
    names: dict[str, str] = {}
    lookup = socket.getaddrinfo

    def resolve(host, *args, **kwargs):
        if not host.endswith(f".{DOMAIN}."):
            return lookup(host, *args, **kwargs)
        if host not in names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (names[host], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return names


@pytest.fixture
def pool():
    with ThreadPoolExecutor() as executor:
        yield executor


def follower(pool: ThreadPoolExecutor, name: str, end: float) -> Future:
    return pool.submit(follow, name, NAMES[0], "127.0.0.1", end)


def soon(seconds: float = 30) -> float:
    return time.monotonic() + seconds


def call(port: int) -> socket.socket:
    """Connect as soon as the leader listens."""

    def connect():
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=30)
        except OSError:
            return None

    return until(connect, "the leader listens", 30)


def test_all_present_are_all_released(pool):
    leader = pool.submit(lead, NAMES[0], NAMES, soon())
    followers = [follower(pool, name, soon()) for name in NAMES[1:]]
    assert [rank.result(30) for rank in (leader, *followers)] == [None, None, None]


def test_a_group_of_one_waits_for_nobody():
    lead("trainer-0", ["trainer-0"], soon())


def test_none_is_released_before_the_last_one_is_here(pool):
    leader = pool.submit(lead, NAMES[0], NAMES, soon())
    early = follower(pool, "trainer-1", soon())
    with pytest.raises(TimeoutError):
        early.result(1)
    assert not leader.done()
    late = follower(pool, "rollout-0", soon())
    assert [rank.result(30) for rank in (leader, early, late)] == [None, None, None]


def test_a_missing_rank_is_named_by_every_other(pool):
    leader = pool.submit(lead, NAMES[0], NAMES, soon(2))
    present = follower(pool, "trainer-1", soon(2))
    with pytest.raises(Missing, match=r"^rollout-0: the pod has an address but did not start"):
        leader.result(30)
    with pytest.raises(Missing, match=r"^rollout-0: the first rank, trainer-0, did not hear from it$"):
        present.result(30)


def test_a_missing_leader_is_named(pool, port):
    with pytest.raises(Missing, match=rf"^trainer-0: .* does not answer on port {port}$"):
        follower(pool, "trainer-1", soon(0.1)).result(30)


def test_a_follower_may_be_first(pool, monkeypatch):
    calls = []
    connect = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda *args, **kw: calls.append(args) or connect(*args, **kw))
    followers = [follower(pool, name, soon()) for name in NAMES[1:]]
    until(lambda: len(calls) >= 3, "they have called in vain")
    lead(NAMES[0], NAMES, soon())
    assert [rank.result(30) for rank in followers] == [None, None]


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\n", b"trainer-9\n", b"no end " * 10_000])
def test_a_stranger_stops_nobody(pool, port, monkeypatch, words):
    monkeypatch.setattr(barrier, "HELLO_S", 0.3)
    leader = pool.submit(lead, NAMES[0], NAMES, soon())
    with call(port) as stranger:
        with contextlib.suppress(OSError):  # hung up on
            stranger.sendall(words)
        followers = [follower(pool, name, soon()) for name in NAMES[1:]]
        assert [rank.result(30) for rank in (leader, *followers)] == [None, None, None]


def test_a_stranger_that_never_stops_talking_stops_nobody(pool, port):
    leader = pool.submit(lead, NAMES[0], NAMES, soon())
    stop = threading.Event()

    def talk(stranger: socket.socket) -> None:
        with contextlib.suppress(OSError):  # hung up on
            while not stop.is_set():
                stranger.sendall(b"x" * 1000)

    with call(port) as stranger:
        talking = pool.submit(talk, stranger)
        followers = [follower(pool, name, soon()) for name in NAMES[1:]]
        try:
            assert [rank.result(30) for rank in (leader, *followers)] == [None, None, None]
        finally:
            stop.set()
            talking.result(60)


def test_a_rank_that_calls_again_counts_once(pool, port):
    leader = pool.submit(lead, NAMES[0], NAMES, soon())
    with call(port) as lost:
        lost.sendall(b"trainer-1\n")  # then its container is restarted
    again = follower(pool, "trainer-1", soon())
    with pytest.raises(TimeoutError):
        leader.result(0.5)
    last = follower(pool, "rollout-0", soon())
    assert [rank.result(30) for rank in (leader, again, last)] == [None, None, None]


def test_names_may_come_late(known, pool):
    known[f"trainer-0.{DOMAIN}."] = "127.0.0.1"
    found = pool.submit(resolve_all, NAMES[:2], DOMAIN, soon())
    with pytest.raises(TimeoutError):
        found.result(0.2)
    known[f"trainer-1.{DOMAIN}."] = "127.0.0.2"
    assert found.result(30) == {"trainer-0": "127.0.0.1", "trainer-1": "127.0.0.2"}


def test_names_that_never_come_are_all_told(known):
    known[f"trainer-0.{DOMAIN}."] = "127.0.0.1"
    with pytest.raises(Missing, match=r"^no pod with an address for trainer-1, rollout-0: "):
        resolve_all(NAMES, DOMAIN, soon(0.05))


def run_main(monkeypatch, file, deadline: float = 30) -> None:
    options = f"--self trainer-0 --domain {DOMAIN} --deadline {deadline} --node-ips-file {file}".split()
    monkeypatch.setattr(sys, "argv", ["group-barrier", *options, "trainer=2", "rollout=1"])
    barrier.main()


def test_a_released_rank_knows_the_addresses_of_its_task(known, pool, monkeypatch, tmp_path):
    for number, name in enumerate(NAMES, start=1):
        known[f"{name}.{DOMAIN}."] = f"127.0.0.{number}"
    followers = [follower(pool, name, soon()) for name in NAMES[1:]]
    run_main(monkeypatch, tmp_path / "ips")
    assert [rank.result(30) for rank in followers] == [None, None]
    assert (tmp_path / "ips").read_text() == "127.0.0.1\n127.0.0.2\n"


def test_a_rank_held_too_long_says_why(known, monkeypatch, tmp_path, termination_log, capsys):
    known[f"trainer-0.{DOMAIN}."] = "127.0.0.1"
    with pytest.raises(SystemExit) as end:
        run_main(monkeypatch, tmp_path / "ips", deadline=0.05)
    assert end.value.code == 66
    said = termination_log.read_text()
    assert "no pod with an address for trainer-1, rollout-0" in said
    assert f'exit_code=66 why="{said}"' in capsys.readouterr().out
    assert not (tmp_path / "ips").exists()
