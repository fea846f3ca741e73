"""ddp-launch before torchrun: whatever keeps the nodes from meeting, every pod ends in time and names the culprit."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
import time

import pytest

from gpuworker.launch.protocol import VERSION, Hello, NodeInfo
from gpuworker.runtime.json_lines import encode
from tests.helpers.launchers import DEADLINE_S, Run, check
from tests.helpers.processes import SOURCE, until

pytestmark = pytest.mark.slow


@pytest.fixture
def run(start, tmp_path):
    return Run(start, tmp_path)


@contextlib.contextmanager
def listener(port: int, serve):
    """Something else on the launchers' port: `serve` gets every connection that is made to it."""
    with socket.create_server(("127.0.0.1", port)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    serve(server.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield server
        server.shutdown(socket.SHUT_RDWR)


def test_all_nodes_come_and_the_phases_are_told(run):
    for node in range(3):
        run.pod(node, 3)
    assert run.wait() == [0, 0, 0], run.say()
    for pod in run.pods:
        for phase in ("resolve", "interface", '"master ready, preflight"', '"world formed"'):
            assert f"phase={phase} " in pod.output, pod.output
        assert pod.verdicts[0].startswith(f"[DONE] node={pod.node} world=3"), pod.output
        assert pod.message == ""


def test_deadlines_are_printed_at_start(run):
    run.pod(
        0,
        1,
        "--join-timeout=44",
        "--rendezvous-timeout=33",
        "--heartbeat-timeout=22",
        "--startup-collective-timeout=11",
        "--collective-timeout=55",
        "--grace-period=66",
    )
    run.wait()
    printed = (
        "join_timeout_s=44 rendezvous_timeout_s=33 heartbeat_timeout_s=22 "
        "startup_collective_timeout_s=11 collective_timeout_s=55 grace_period_s=66"
    )
    assert printed in run.pods[0].output.splitlines()[0]


def test_nothing_listens_on_node_0(run):
    """A pending pod 0, an image that cannot be pulled and a closed port look the same from another pod."""
    run.pod(1, 2)
    run.all_end(
        65,
        "connection-refused",
        f"node 0 at localhost (127.0.0.1) port {run.port + 1} refuses",
        "pending, image not pulled",
    )


def test_node_0_starts_late(run):
    run.pod(1, 2, "--join-timeout=30")
    time.sleep(4)
    run.pod(0, 2, "--join-timeout=30")
    assert run.wait() == [0, 0], run.say()


def test_packets_are_dropped(run):
    """A full queue of connections makes Linux drop the next ones: as a NetworkPolicy does, without being root."""
    with socket.socket() as server, contextlib.ExitStack() as waiting:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", run.port + 1))
        server.listen(0)
        for _ in range(3):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", run.port + 1))
        run.pod(1, 2)
        run.all_end(65, "packets-dropped", "does not answer")


def test_an_http_server_is_no_store(run):
    def serve(client):
        client.recv(4096)
        client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        client.close()

    with listener(run.port + 1, serve):
        run.pod(1, 2)
        run.all_end(65, "foreign-service", "answers 'HTTP/1.1 400 Bad Request")


def test_something_accepts_and_stays_silent(run):
    held = []
    with listener(run.port + 1, held.append):
        run.pod(1, 2)
        run.all_end(65, "no-response", "accepts and sends nothing")
    assert held
    for client in held:
        client.close()


def test_a_proxy_accepts_and_closes(run):
    with listener(run.port + 1, socket.socket.close):
        run.pod(1, 2)
        run.all_end(65, "connection-closed", "accepts and closes")


def test_strangers_do_not_disturb_node_0(run):
    run.pod(0, 2, "--join-timeout=20")
    for words in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\xff\n",
        b"{}\n",
        b'{"type": "Hello", "version": "ddp-launch/2"}\n',
        b"[" * 5000 + b"\n",
    ):
        for _ in range(40):
            with (
                contextlib.suppress(ConnectionRefusedError),
                socket.create_connection(("127.0.0.1", run.port + 1)) as knock,
            ):
                knock.sendall(words)
                break
            time.sleep(0.1)
    run.pod(1, 2, "--join-timeout=20")
    assert run.wait() == [0, 0], run.say()


def test_node_info_that_makes_no_sense_ends_the_run_with_a_verdict(run):
    """It cannot come from this launcher; that node 0 would wait for ever would be worse than to end."""
    pod = run.pod(0, 2, "--join-timeout=20")
    until(lambda: "phase=interface" in pod.output, "it listens")
    hello = Hello(VERSION, "test", NodeInfo(node=1, pod="run-1"))
    with socket.create_connection(("127.0.0.1", run.port + 1)) as line:
        line.sendall(encode(hello))
        run.all_end(67, "nodes-differ", "nnodes: node 1 (pod run-1) has none", within_s=15)


def test_one_node_is_missing(run):
    for node in (0, 2):
        run.pod(node, 3)
    run.all_end(66, "node-missing", f"node 1 did not join within {DEADLINE_S} s")


def test_one_node_too_many(run):
    for node in range(2):
        run.pod(node, 2)
    run.pod(2, 2)
    assert run.wait() == [0, 0, 2], run.say()
    check(run.pods[2], 2, "usage", "NODE_RANK=2: must be below NNODES=2, one node too many?")


def test_two_pods_claim_one_index(run):
    run.pod(0, 3, "--join-timeout=15")
    for name in ("run-1", "run-1-again"):
        run.pod(1, 3, "--join-timeout=15", POD_NAME=name)
    run.all_end(67, "duplicate-node", "pod run-1 on n1", "pod run-1-again on n1", within_s=20)


ODD = "node 1 (pod run-1 on n1)"
# What one node has, unlike the others -> what the verdict says of it.
DIFFERENT = {
    "another number of nodes": ({"NNODES": 4}, (), f"nnodes: {ODD} has 4; the other nodes have 3"),
    "another number of processes": ({"NPROC_PER_NODE": 2}, (), f"nproc_per_node: {ODD} has 2; the other nodes have 1"),
    "another image": (
        {"GPU_CHARTS_IMAGE": "reg/train:2"},
        (),
        f"image: {ODD} has reg/train:2; the other nodes have none",
    ),
    "another backend": ({}, ("--backend=c10d",), f"backend: {ODD} has c10d; the other nodes have static"),
    "a clock that is off": ({"FAULT_CLOCK_S": 60}, (), f"{ODD}: clock +60 s off"),
    "too little shared memory": ({}, ("--min-shm=900Ti",), "at least 900Ti expected"),
    "too little disk": ({}, ("--min-disk=900Ti",), "at least 900Ti expected"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_one_node_is_different(run, what):
    variables, flags, words = DIFFERENT[what]
    for node in range(3):
        odd = node == 1
        run.pod(node, 3, *(flags if odd else ()), **(variables if odd else {}))
    cause = "node-unfit" if what.startswith(("a clock", "too little")) else "nodes-differ"
    run.all_end(67, cause, "node 1 (pod run-1 on n1)", words)


def test_node_0s_clock_is_off(run):
    for node in range(3):
        run.pod(node, 3, FAULT_CLOCK_S=-60 if node == 0 else 0)
    run.all_end(67, "node-unfit", "node 0 (pod run-0 on n0): clock -60 s off the other nodes'")


def test_one_node_has_another_torch(run, tmp_path):
    other = tmp_path / "other" / "torch"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    (other / "version.py").write_text("__version__ = '2.5.1'\ncuda: Optional[str] = None\n")
    for node in range(3):
        run.pod(node, 3, **({"PYTHONPATH": f"{other.parent}:{SOURCE}"} if node == 2 else {}))
    run.all_end(67, "nodes-differ", "torch: node 2 (pod run-2 on n2) has 2.5.1; the other nodes have 2.99.0")


@pytest.mark.parametrize(
    ("gpus", "planned", "words"),
    [
        ((8, 7, 8), 0, "gpus: node 1 (pod run-1 on n1) has 7; the other nodes have 8"),
        ((8, 7, 8), 8, "node 1 (pod run-1 on n1): 7 GPUs, 8 expected"),
    ],
)
def test_one_node_has_fewer_gpus(run, tmp_path, gpus, planned, words):
    for node, count in enumerate(gpus):
        folder = tmp_path / f"bin-{node}"
        folder.mkdir()
        tool = folder / "nvidia-smi"
        tool.write_text("#!/bin/sh\n" + "echo NVIDIA H100 80GB HBM3\n" * count)
        tool.chmod(0o755)
        path = f"{folder}:{os.environ['PATH']}"
        run.pod(node, 3, PATH=path, **({"NUM_GPUS_PER_NODE": planned} if planned else {}))
    run.all_end(67, "node-unfit" if planned else "nodes-differ", words)


@pytest.mark.parametrize("variable", ["--interface", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"])
def test_a_wrong_interface(run, variable):
    run.pod(0, 2)
    flags = ["--interface=eth99"] if variable == "--interface" else []
    run.pod(1, 2, *flags, **({variable: "eth99"} if not flags else {}))
    run.all_end(68, "interface-not-found", f"{variable}=eth99", "lo 127.0.0.1")


def test_two_runs_on_one_port(run):
    run.pod(0, 2, "--join-timeout=7", RUN_ID="first")
    until(lambda: "phase=interface" in run.pods[0].output, "the first run listens")
    run.pod(0, 2, RUN_ID="second")
    run.pod(1, 2, RUN_ID="second")
    assert run.wait() == [66, 65, 65], run.say()
    check(run.pods[0], 66, "node-missing", "node 1 did not join")
    check(run.pods[1], 65, "port-in-use", f"port {run.port + 1} is in use on node 0")
    check(run.pods[2], 65, "other-run", "belongs to the run 'first', this is 'second'")


def test_the_port_of_the_rendezvous_is_taken(run):
    with socket.create_server(("", run.port)):
        run.pod(0, 1)
        run.all_end(65, "port-in-use", f"port {run.port} is in use on node 0")


def test_a_stale_rendezvous_id_cannot_be(run):
    """Node 0 chooses it anew for each attempt, whatever RUN_ID and ATTEMPT say."""
    ids = []
    for _ in range(2):
        again = Run(run.start, run.folder)
        again.pod(0, 1)
        assert again.wait() == [0]
        ids += re.findall(r" id=(\S+)", again.pods[0].output)
    assert len(set(ids)) == 2, ids


def test_node_0_comes_back_before_all_are_there(run):
    """Its container starts again: those that have met it once go on waiting for it."""
    run.pod(1, 2, "--join-timeout=30")
    first = run.pod(0, 3, "--join-timeout=30", NNODES=2, NODE_RANK=0, RUN_ID="test", GPU_CHARTS_IMAGE="")
    until(lambda: "phase=interface" in first.output, "it listens")
    first.started.process.kill()
    first.started.wait()
    run.pods.remove(first)
    run.pod(0, 2, "--join-timeout=30")
    assert run.wait() == [0, 0], run.say()


@pytest.mark.parametrize("node", [0, 1])
def test_sigterm_while_waiting_for_others(run, node):
    pod = run.pod(node, 2, "--join-timeout=60")
    until(lambda: "phase=interface" in pod.output, "it waits")
    pod.started.process.send_signal(signal.SIGTERM)
    run.all_end(143, "stopped", f"node {node} (pod run-{node} on n{node}) got SIGTERM before the world was formed")
