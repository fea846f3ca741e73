"""ddp-launch before torchrun starts: for every fault, each pod ends in time and names the node at
fault.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import threading
import time

import pytest

from gpuworker.launch.protocol import NodeInfo, Status
from gpuworker.runtime.json_lines import encode
from tests.helpers.launchers import STAND_IN, UNRESOLVABLE, Run, assert_verdict
from tests.helpers.processes import SOURCE, until

pytestmark = pytest.mark.slow


@pytest.fixture
def run(start, tmp_path):
    return Run(start, tmp_path)


@contextlib.contextmanager
def listener(port: int, serve):
    """A foreign service on the launchers' port: `serve` gets every connection."""
    with socket.create_server(("127.0.0.1", port)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    serve(server.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield server
        server.shutdown(socket.SHUT_RDWR)


def test_a_run_of_three_nodes_logs_every_phase(run):
    for node in range(3):
        run.pod(node, 3)
    assert run.wait() == [0, 0, 0], run.output
    for pod in run.pods:
        for phase in ("resolve", "interface", '"master ready, preflight"', '"ranks started"'):
            assert f"phase={phase} " in pod.output, pod.output
        assert pod.verdicts[0].startswith(f"[DONE] node={pod.node} world=3"), pod.output
        assert pod.termination_message == ""


def test_node_0_may_start_later_than_other_nodes(run):
    run.pod(1, 2)
    time.sleep(4)
    run.pod(0, 2)
    assert run.wait() == [0, 0], run.output


@contextlib.contextmanager
def full_queue(port: int):
    """When the queue of connections is full, Linux drops further ones, as a NetworkPolicy would. It
    needs no root.
    """
    with socket.socket() as server, contextlib.ExitStack() as waiting:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen(0)
        for _ in range(3):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        yield


def answers(client: socket.socket) -> None:
    client.recv(4096)
    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    client.close()


HELD = []
# What is on node 0's port -> the cause. A closed port is also that of a pending pod 0.
ON_THE_PORT = {
    "nothing": ("connection-refused", contextlib.nullcontext),
    "a firewall": ("packets-dropped", full_queue),
    "an HTTP server": ("foreign-service", lambda port: listener(port, answers)),
    "a service that sends nothing": ("no-response", lambda port: listener(port, HELD.append)),
    "a proxy": ("connection-closed", lambda port: listener(port, socket.socket.close)),
}


@pytest.mark.parametrize("what", ON_THE_PORT)
def test_what_is_on_the_port_is_named(run, what):
    cause, serve = ON_THE_PORT[what]
    with serve(run.port + 1):
        run.pod(1, 2, "--join-timeout=10")
        words = ["'HTTP/1.1 400 Bad Request"] * (cause == "foreign-service")
        run.assert_verdict(
            65, cause, "node 0 at localhost (127.0.0.1)", f"port {run.port + 1}", *words
        )


def test_garbage_on_the_port_does_not_disturb_the_coordinator(run):
    run.pod(0, 2, "--join-timeout=20")
    for words in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\xff\n",
        b"{}\n",
        b'{"type": "Status", "run_id": "test"}\n',
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
    assert run.wait() == [0, 0], run.output


def test_invalid_node_info_ends_the_run_with_a_verdict(run):
    """This launcher does not send it. Without a verdict, all nodes would wait until the join
    timeout.
    """
    pod = run.pod(0, 2, "--join-timeout=20")
    until(lambda: "phase=interface" in pod.output, "node 0 listens")
    hello = Status("test", NodeInfo(node=1, pod="run-1"))
    with socket.create_connection(("127.0.0.1", run.port + 1)) as connection:
        connection.sendall(encode(hello))
        run.assert_verdict(67, "nodes-differ", "nnodes: node 1 (pod run-1) ", within_s=15)


def test_a_node_rank_beyond_nnodes_is_a_usage_error(run):
    for node in range(2):
        run.pod(node, 2)
    run.pod(2, 2)
    assert run.wait() == [0, 0, 2], run.output
    assert_verdict(run.pods[2], 2, "usage", "NODE_RANK=2", "NNODES=2")


def test_two_pods_with_one_index_are_duplicate_nodes(run):
    run.pod(0, 3, "--join-timeout=15")
    for name in ("run-1", "run-1-again"):
        run.pod(1, 3, "--join-timeout=15", POD_NAME=name)
    run.assert_verdict(
        67, "duplicate-node", "pod run-1 on n1", "pod run-1-again on n1", within_s=20
    )


NODE_1 = "node 1 (pod run-1 on n1)"
# Faults -> code and cause, what is particular to each node ("FLAG", "GPUS", "TORCH" or a variable;
# None: it is not started), and words of the verdict of all.
FAULTS = {
    "a missing node": ("66 node-missing", [{}, None, {}], ["node 1 ", "10 s"]),
    "another number of nodes": ("67 nodes-differ", [{}, {"NNODES": 4}, {}], [NODE_1, "nnodes: ", " 4; ", " 3"]),
    "another number of processes": ("67 nodes-differ", [{}, {"NPROC_PER_NODE": 2}, {}], [NODE_1, "nproc_per_node: "]),
    "another image": ("67 nodes-differ", [{}, {"GPU_CHARTS_IMAGE": "reg/train:2"}, {}], [NODE_1, "image: ", "train:2"]),
    "another torch": ("67 nodes-differ", [{}, {"TORCH": "2.5.1"}, {}], [NODE_1, "torch: ", " 2.5.1; ", " 2.99.0"]),
    "fewer GPUs": ("67 nodes-differ", [{"GPUS": 8}, {"GPUS": 7}, {"GPUS": 8}], [NODE_1, "gpus: ", " 7; ", " 8"]),
    "fewer GPUs than requested": ("67 node-unfit", [{}, {"GPUS": 7, "NUM_GPUS_PER_NODE": 8}], [NODE_1, "7 GPUs", "8 "]),
    "no GPU for the processes": ("2 usage", [{}, {"NPROC_PER_NODE": "gpu"}], [NODE_1, "NPROC_PER_NODE=gpu"]),
    "no number": ("2 usage",
        [{"FLAG": "--heartbeat-timeout=soon"}, {}], ["node 0 (pod run-0 on n0)", "--heartbeat-timeout"]),
    "an unknown flag": ("2 usage",
        [{}, {"FLAG": "--password=planted"}], [NODE_1, "unrecognized arguments: --password"]),
    "no such interface": ("68 interface-not-found",
        [{}, {"FLAG": "--interface=eth99"}], ["--interface=eth99", "lo 127.0.0.1"]),
    "no interface for Gloo": ("68 interface-not-found",
        [{}, {"GLOO_SOCKET_IFNAME": "eth99"}], ["GLOO_SOCKET_IFNAME=eth99"]),
    "no interface for NCCL": ("68 interface-not-found",
        [{}, {"NCCL_SOCKET_IFNAME": "eth99"}], ["NCCL_SOCKET_IFNAME=eth99"]),
    "a name that does not resolve": ("64 name-not-resolved",
        [{"MASTER_ADDR": UNRESOLVABLE}] * 2, [UNRESOLVABLE, "10 s"]),
    "an address of another pod": ("64 wrong-address", [{"MASTER_ADDR": "192.0.2.1"}], ["192.0.2.1", "node 0 "]),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_node_ends_all_with_its_cause(run, tmp_path, name):
    wanted, nodes, words = FAULTS[name]
    for node, changes in enumerate(nodes):
        if changes is None:
            continue
        changes, folder = dict(changes), tmp_path / f"node-{node}"
        shutil.copytree(STAND_IN, folder)
        if version := changes.pop("TORCH", None):
            (folder / "torch" / "version.py").write_text(
                f"__version__ = '{version}'\ncuda: Optional[str] = None\n"
            )
            changes["PYTHONPATH"] = f"{folder}:{SOURCE}"
        if gpus := changes.pop("GPUS", None):
            tool = folder / "nvidia-smi"
            tool.write_text(
                "#!/bin/sh\n" + "echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)'\n" * gpus
            )
            tool.chmod(0o755)
            changes["PATH"] = f"{folder}:{os.environ['PATH']}"
        flags = [changes.pop("FLAG")] if "FLAG" in changes else []
        run.pod(node, len(nodes), "--join-timeout=10", *flags, **changes)
    code, cause = wanted.split()
    run.assert_verdict(int(code), cause, *words, within_s=40)
    assert "planted" not in run.output


def test_two_runs_on_one_port_do_not_mix(run):
    run.pod(0, 2, RUN_ID="first")
    until(lambda: "phase=interface" in run.pods[0].output, "the first run listens")
    run.pod(0, 2, RUN_ID="second")
    run.pod(1, 2, RUN_ID="second")
    assert run.wait() == [66, 65, 65], run.output
    assert_verdict(run.pods[0], 66, "node-missing", "node 1 ")
    assert_verdict(run.pods[1], 65, "port-in-use", f"port {run.port + 1}", "node 0")
    assert_verdict(run.pods[2], 65, "other-run", "belongs to another run")


def test_nodes_rejoin_when_node_0_restarts_during_preflight(run):
    """Its container starts again, and nodes that were connected to it go on waiting."""
    run.pod(1, 2)
    first = run.pod(0, 3, NNODES=2, NODE_RANK=0, RUN_ID="test", GPU_CHARTS_IMAGE="")
    until(lambda: "phase=interface" in first.output, "node 0 listens")
    first.started.process.kill()
    first.started.wait()
    run.pods.remove(first)
    run.pod(0, 2)
    assert run.wait() == [0, 0], run.output


@pytest.mark.parametrize("node", [0, 1])
def test_sigterm_during_preflight_ends_that_pod(run, node):
    pod = run.pod(node, 2, "--join-timeout=60")
    until(lambda: "phase=interface" in pod.output, "the node waits")
    pod.started.process.send_signal(signal.SIGTERM)
    run.assert_verdict(143, "stopped", f"node {node} (pod run-{node} on n{node}) ", "SIGTERM")
