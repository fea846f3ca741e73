"""A hostile pod that is not of the release, and SIGKILL at random instants of launcher, agent and
collector.

With a key it knows everything but the key, and no message may have an effect. Without one it does
not know the run's id, and its messages reach the readers of JSON; reports have no such id, so the
collector must only survive them.

`make attack` sends ATTACK_MESSAGES to each port and kills in ATTACK_KILLS rounds; ATTACK_SEED
chooses others.
"""

import concurrent.futures
import itertools
import json
import os
import random
import re
import time
import urllib.request

import pytest

from gpuworker.fleet import client
from gpuworker.group.protocol import Request
from gpuworker.launch.failure_causes import Failure
from gpuworker.launch.protocol import NodeInfo, Status
from gpuworker.runtime.contract import GROUP_AGENT_PORT
from gpuworker.runtime.json_lines import encode
from tests.helpers.fleet_reports import broken_report, complete_report
from tests.helpers.group_agents import codes
from tests.helpers.hostile_messages import deliver, listens, messages, peak_mib, slow_clients
from tests.helpers.launchers import Run
from tests.helpers.processes import alive, descendants, free_port, until

pytestmark = pytest.mark.slow
MESSAGES = int(os.environ.get("ATTACK_MESSAGES", "40"))  # per port, with and without a key
KILLS = int(os.environ.get("ATTACK_KILLS", "1"))
SEED = os.environ.get("ATTACK_SEED", "1")
KEY = b"k" * 32
SLOW = 40  # connections that stay open meanwhile
PATIENCE_S = 120 + MESSAGES // 10
timeout = pytest.mark.timeout(PATIENCE_S + 60 * (KILLS + 1))
# an idle process has 25 to 45; a line of 1 MiB and its JSON are the largest that any of them reads
MOST_MIB = 110


@pytest.fixture(params=[KEY, b""], ids=["key", "no key"])
def key(request) -> bytes:
    return request.param


@pytest.fixture
def settings(key, tmp_path) -> dict[str, object]:
    (tmp_path / "key").write_bytes(key)
    return {"GPU_CHARTS_KEY_FILE": tmp_path / "key"} if key else {}


def attack(address: str, port: int, valid: bytes, secret: bytes):
    """Send the messages, some at a time. No answer contains the secret."""
    with slow_clients(address, port, valid, SLOW), concurrent.futures.ThreadPoolExecutor(4) as pool:
        sent = itertools.islice(messages(valid, SEED), MESSAGES)
        for kind, answer in pool.map(lambda each: (each[0], deliver(address, port, each[1])), sent):
            assert secret not in answer, (kind, answer)


def test_strangers_neither_end_nor_falsify_a_run(start, tmp_path, key, settings):
    run = Run(start, tmp_path)
    first = run.pod(0, 2, f"--join-timeout={PATIENCE_S}", **settings)
    until(lambda: listens("127.0.0.1", run.port + 1), "node 0 listens")
    info = NodeInfo(node=1, problem=Failure("usage", "forged"))
    forged = encode(Status("test" if key else "other", info))
    attack("127.0.0.1", run.port + 1, forged, b'"type"' if key else b'"Welcome"')
    peak = peak_mib(first.started.process.pid)
    run.pod(1, 2, f"--join-timeout={PATIENCE_S}", **settings)
    assert run.wait() == [0, 0], run.output
    assert peak < MOST_MIB and "Traceback" not in run.output, run.output


@pytest.fixture
def group(group, settings):
    group.agent_settings |= settings
    group.write_plan({"buffer": {}, "trainer": {"numNodes": 2}}, timeout=PATIENCE_S)
    return group


def test_strangers_neither_release_nor_end_a_group(group, key):
    leader = group.start_rank("buffer-0", "echo ran")
    until(lambda: listens(leader.address, GROUP_AGENT_PORT), "the agent listens")
    request = encode(Request("rl-1" if key else "other", "0", "trainer-0"))
    forged = request.replace(b"}\n", b', "state": {"released": true}}\n')
    attack(leader.address, GROUP_AGENT_PORT, forged, b'"type"')
    assert "\nran" not in leader.output(), "a stranger released the group"
    peak = peak_mib(leader.sidecar.pid)
    others = [group.start_rank(host, "echo ran") for host in ("trainer-0", "trainer-1")]
    assert codes(*others, leader) == [0, 0, 0], leader.output("agent")
    assert peak < MOST_MIB and "Traceback" not in leader.output("agent"), leader.output("agent")


class Collector:
    """`accept-report serve` as a process that can be killed and started again."""

    def __init__(self, start, folder, nodes: int, **variables: object):
        self.start, self.folder, self.nodes, self.variables = start, folder, nodes, variables
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/reports"

    def begin(self):
        arguments = [f"--port={self.port}", "--run-id=1", f"--report-dir={self.folder}"]
        arguments += [f"--expect-nodes={self.nodes}", "--interval=60"]
        self.program = self.start(
            "-m", "gpuworker.fleet.cli", "serve", *arguments, **self.variables
        )

    def serves(self) -> bool:
        return listens("127.0.0.1", self.port)

    def result(self) -> dict:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.port}/report.json", timeout=60
        ) as response:
            return json.load(response)


def test_strangers_hand_in_no_report(start, tmp_path, key, settings):
    collector = Collector(start, tmp_path / "reports", 1, **settings)
    collector.begin()
    until(collector.serves, "the collector serves")
    report = json.dumps(broken_report("n1")).encode()
    head = b"POST /reports HTTP/1.1\r\nX-Report-Nonce: 1\r\nContent-Length: %d\r\n\r\n" % len(
        report
    )
    attack("127.0.0.1", collector.port, head + report, b" 200 " if key else b"not in any answer")
    peak = peak_mib(collector.program.process.pid)
    assert client.send(json.dumps(complete_report("n2")).encode(), collector.url, 60, key) == ""
    result = collector.result()
    names = [node["node"] for node in result["nodes"]]
    assert names == ["n2"] and result["verdict"] != "FAIL" if key else "n2" in names
    assert peak < MOST_MIB and "Traceback" not in collector.program.output, collector.program.output


@timeout
def test_a_killed_collector_loses_no_report(start, tmp_path):
    """A report counts as handed in when the collector has acknowledged it; until then its pod sends
    it again.
    """
    rng, nodes = random.Random(SEED), 8 * (KILLS + 1)
    collector = Collector(start, tmp_path / "reports", nodes)
    collector.begin()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        reports = [json.dumps(complete_report(f"n{number}")).encode() for number in range(nodes)]
        sent = [pool.submit(client.send, report, collector.url, PATIENCE_S) for report in reports]
        for round_ in range(KILLS):
            until(
                lambda most=8 * round_: sum(each.done() for each in sent) > most,
                "reports are acknowledged",
            )
            time.sleep(rng.random() * 0.02)  # the instant, not a wait
            collector.program.process.kill()
            collector.program.process.wait()
            collector.begin()
        assert [each.result() for each in sent] == [""] * nodes
    names = {node["node"] for node in collector.result()["nodes"]}
    assert names == {f"n{number}" for number in range(nodes)}


@timeout
@pytest.mark.parametrize("key", [KEY], ids=["key"])
def test_a_killed_agent_changes_nothing(group):
    rng = random.Random(SEED)
    run = "until [ -e ../../../stop ]; do sleep 0.1; done"
    ranks = [group.start_rank(host, run) for host in ("buffer-0", "trainer-0", "trainer-1")]
    for _ in range(KILLS):
        rank = rng.choice(ranks)
        time.sleep(rng.random())  # the instant, not a wait
        rank.kill_agent()
        rank.start_agent()
    until(lambda: all("starts attempt" in rank.output() for rank in ranks), "the group runs")
    (group.folder / "stop").touch()
    assert codes(*ranks) == [0, 0, 0], [rank.output() for rank in ranks]


# It never ends by itself, and takes a moment to save.
TRAINS = """
import os, signal, sys, time
def save(*_):
    time.sleep(0.5)
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("trains", flush=True)
while True:
    time.sleep(60)
"""
NODE_IS_GONE = {"connection-refused", "connection-closed", "node-missing", "node-lost"}


@timeout
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_launcher_is_a_lost_node(start, tmp_path, victim):
    """At any instant: before the nodes join, in the rendezvous, or while the program runs. The
    other node saves.
    """
    rng = random.Random(f"{SEED} {victim}")
    longest = (
        0.0  # from the start of the pods until the program runs, which the first round measures
    )
    for round_ in range(KILLS + 1):
        run, started_at = Run(start, tmp_path), time.monotonic()
        for node in range(2):
            run.pod(node, 2, "--join-timeout=15", program=[run.script(TRAINS)])
        if round_:
            time.sleep(rng.random() * longest)  # the instant, not a wait
        else:
            until(
                lambda run=run: all("trains" in pod.output for pod in run.pods), "the program runs"
            )
            longest = 1.5 * (time.monotonic() - started_at)
        processes = descendants(run.pods[victim].started.process.pid)
        run.pods[victim].started.process.kill()
        survivor = run.pods[1 - victim]
        code, output = survivor.started.wait(), survivor.output
        cause = re.search(r" cause=(\S+)", "".join(survivor.verdicts))
        assert cause and cause[1] in NODE_IS_GONE and code in (65, 66, 71), (
            round_,
            code,
            run.output,
        )
        assert len(survivor.verdicts) == 1 and "Traceback" not in output, (round_, run.output)
        assert output.count("trains\n") == output.count("saved\n"), (round_, run.output)
        until(lambda: not any(map(alive, processes)), "the processes of the killed launcher end")  # noqa: B023
