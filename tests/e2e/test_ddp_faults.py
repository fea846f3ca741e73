"""ddp-run with real pods: every fault ends with one verdict on all of them, and a stop that was saved is no failure."""

from __future__ import annotations

import time

import pytest
from kube import Namespace, wait_until
from launches import TRAIN, ends, index, inside, job_ended, nodes_of, one_verdict, said, start, until_trains

# -- before the world is formed

ODD = '[ "$NODE_RANK" != 1 ] || '
LISTEN = (
    "import socket, time\ns = socket.create_server(('', 29501))\nkept = []\nwhile True:\n    c = s.accept()[0]\n    "
)
BEFORE = {
    "the name does not resolve": ("export MASTER_ADDR=nobody.invalid", 64, "no-name", "nobody.invalid did not resolve"),
    "the name is that of a Service": ("export MASTER_ADDR=kubernetes.default.svc", 64, "wrong-name", "no such address"),
    "another number of nodes": (ODD + "export NNODES=3", 67, "differ", "nodes: node 1"),
    "another number of processes": (ODD + "export NPROC_PER_NODE=2", 67, "differ", "processes: node 1"),
    "another image": (ODD + "export IMAGE=other", 67, "differ", "image: node 1"),
    "fewer GPUs": (ODD + "export NUM_GPUS_PER_NODE=1", 67, "unfit", "node 1"),
    "another torch": (
        ODD + "{ mkdir -p /tmp/x/torch; touch /tmp/x/torch/__init__.py; "
        "echo \"__version__ = '1.0'\" > /tmp/x/torch/version.py; export PYTHONPATH=/tmp/x; }",
        67, "differ", "torch: node 1",
    ),
    "a wrong interface": (ODD + "export GLOO_SOCKET_IFNAME=eth99", 68, "interface", "node 1", "eth99"),
}  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("fault", BEFORE)
def test_a_fault_before_the_start(namespace: Namespace, fault: str) -> None:
    before, code, cause, *words = BEFORE[fault]
    start(namespace, before=before)
    if cause == "wrong-name":  # only node 0 can know; to the others that address is silent
        one_verdict({0: ends(namespace, 2)[0]}, code, cause, *words)
    else:
        words = [word for word in words if word != "node 1" or cause != "interface"]
        one_verdict(ends(namespace, 2), code, cause, *words)
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 60) == "Failed"


# What is on node 0's port in place of the launcher -> the row of the table.
STRANGERS = {
    "nothing": ("sleep 600", "refused"),
    "an HTTP server": ("exec python3 -m http.server 29501", "stranger"),
    "a silent one": (f"exec python3 -c \"{LISTEN}kept.append(c)\"", "silent"),
    "a proxy without its master": (f"exec python3 -c \"{LISTEN}c.close()\"", "closes"),
}  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_on_node_0(namespace: Namespace, stranger: str) -> None:
    command, cause = STRANGERS[stranger]
    start(namespace, before=f'[ "$NODE_RANK" != 0 ] || {{ {command}; }}')
    one_verdict({1: ends(namespace, 1)[1]}, 65, cause, "node 0 at run-ddp-run-")


@pytest.mark.matrix
def test_a_node_that_cannot_be_scheduled(namespace: Namespace) -> None:
    nodes = len(namespace.cluster.schedulable_nodes()) + 1
    start(namespace, "--set", f"nodes={nodes}", "--set", "placement.onePodPerNode=required")
    found = ends(namespace, nodes - 1)
    (absent,) = set(range(nodes)) - set(found)
    if absent:
        one_verdict(found, 66, "missing", f"node {absent} did not come")
    else:  # it is the master itself; it may still come, in the room of the first that gave up
        assert {code for code, _ in found.values()} <= {64, 65, 66}


@pytest.mark.matrix
def test_too_little_shared_memory(namespace: Namespace) -> None:
    start(namespace, "--set", "sharedMemory.sizeLimit=64Mi")
    one_verdict(ends(namespace, 2), 67, "unfit", "/dev/shm has 64Mi, at least 1Gi expected")


# -- faults while it runs


# What rank 1 does in step 7 -> the verdict.
DURING = {
    "sys.exit(9)": (1, "failed", "rank 1 of node 1", "exit code 9"),
    "raise ValueError('NaN')": (1, "failed", "rank 1 of node 1", "ValueError: NaN"),
    "break": (1, "early-end", "rank 1 of node 1"),
    "os.kill(os.getpid(), 9)": (1, "killed", "rank 1 of node 1", "SIGKILL"),
    "raise OSError(28, 'No space left on device')": (1, "disk-full", "rank 1 of node 1"),
}


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=pytest.mark.matrix if index else ()) for index, fault in enumerate(DURING)]
)
def test_a_rank_fails(namespace: Namespace, fault: str) -> None:
    start(namespace, program=TRAIN.replace("FAULT", f"if step == 7 and dist.get_rank() == 1: {fault}"))
    one_verdict(ends(namespace, 2), *DURING[fault])


@pytest.mark.matrix
def test_a_rank_is_frozen(namespace: Namespace) -> None:
    start(namespace, "--set", "timeouts.startSeconds=20", "--set", "timeouts.workSeconds=20",
          program=TRAIN.replace("FAULT", ""))  # fmt: skip
    until_trains(namespace)
    inside(namespace, 1, "pkill -STOP -f /inside.py")
    one_verdict(ends(namespace, 2), 70, "collective", "rank 1 of node 1", "is stopped by a signal (SIGSTOP)")


@pytest.mark.matrix
def test_a_pod_is_killed(namespace: Namespace) -> None:
    start(namespace, program=TRAIN.replace("FAULT", ""))
    until_trains(namespace)
    victim = next(pod for pod in nodes_of(namespace) if index(pod) == 1)["metadata"]["name"]
    namespace.kubectl("delete", "pod", victim, "--force", "--grace-period=0")
    code, message = ends(namespace, 1)[0]
    assert code in (66, 75, 143) and "node 1" in message, message  # killed without a word, or just after SIGTERM


@pytest.mark.matrix
@pytest.mark.parametrize("nodes", [(0,), (1,), (0, 1)], ids=["pod 0", "pod 1", "all"])
def test_a_deleted_pod_comes_back_and_the_run_starts_again(namespace: Namespace, nodes: tuple[int, ...]) -> None:
    """The program saved, so it does not count as a failure: maxRestarts is 0."""
    start(namespace, "--set", "rendezvous.timeoutSeconds=120", program=TRAIN.replace("FAULT", ""))
    until_trains(namespace)
    names = [pod["metadata"]["name"] for pod in nodes_of(namespace) if index(pod) in nodes]
    namespace.kubectl("delete", "pod", *names, "--wait=false")
    assert wait_until(lambda: job_ended(namespace), "the Job ended", 300) == "Complete"


@pytest.mark.matrix
def test_sigterm_while_waiting(namespace: Namespace) -> None:
    start(namespace, "--set", "rendezvous.timeoutSeconds=300", before='[ "$NODE_RANK" != 0 ] || sleep 600')
    wait_until(lambda: "phase=interface" in said(namespace).get(1, ""), "node 1 waits", 120)
    begun = time.monotonic()
    victim = next(pod for pod in nodes_of(namespace) if index(pod) == 1)["metadata"]["name"]
    namespace.kubectl("delete", "pod", victim, "--wait=true")
    assert time.monotonic() - begun < 15, "it does not use up its grace period"
