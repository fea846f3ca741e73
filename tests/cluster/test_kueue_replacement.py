"""A mark of ours moves a run that Kueue placed by topology: the next pod of its rank is on another
of three nodes.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator

import pytest

from hack import test_cluster
from tests.cluster.test_node_actions import STATE, UNFIT, install, is_tainted
from tests.e2e.test_kueue import queue_by_topology
from tests.helpers.ddp_pods import TRAIN, node_index, node_pods, start, wait_until_training
from tests.helpers.kube import Cluster, Namespace, new_namespace, wait_until

pytestmark = pytest.mark.matrix
HOSTNAME = "kubernetes.io/hostname"  # Kueue replaces nodes only where this is the lowest level
BY_NODE = json.dumps({"kueue.x-k8s.io/podset-preferred-topology": HOSTNAME})
ONE_PER_NODE = "resources.requests.cpu=40"  # of 64


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    test_cluster.local_cluster("down")
    os.environ["NODES"] = "3"
    os.environ |= test_cluster.prepare()
    yield Cluster(os.environ["WORKER_IMAGE"])
    test_cluster.local_cluster("down")
    del os.environ["NODES"]


@pytest.fixture
def queue(namespace: Namespace) -> Iterator[Namespace]:
    queue_by_topology(namespace, "moves", HOSTNAME)
    yield namespace
    for kind in ("clusterqueue", "resourceflavor", "topologies.kueue.x-k8s.io"):
        namespace.kubectl("delete", kind, "moves", "--wait=false")


def places(space: Namespace) -> dict[str, str]:
    """Node -> pod, of the pods of node 1 of the run, those that have ended included."""
    pods = [pod for pod in node_pods(space) if node_index(pod) == 1]
    return {pod["spec"].get("nodeName", ""): pod["metadata"]["name"] for pod in pods}


def log_of(space: Namespace, pod: str) -> str:
    try:
        return space.logs(pod, "trainer")
    except AssertionError:  # its container has not started
        return ""


def test_a_run_leaves_the_node_that_has_our_mark(queue: Namespace) -> None:
    cluster = queue.cluster
    settings = f"nodes=2,maxRestarts=3,kueue.queueName=queue,{ONE_PER_NODE}"
    template = f"podTemplate.metadata.annotations={BY_NODE}"
    start(queue, "--set", settings, "--set-json", template, program=TRAIN.replace("FAULT", "pass"))
    wait_until_training(queue)
    ((victim, pod),) = places(queue).items()
    # Kueue 0.19.2 takes any pod of the run's namespace for one of the run, and keeps its node.
    with new_namespace(cluster) as tests:
        try:
            install(tests, victim, 1, "--set", "inject=nan-product")
            wait_until(lambda: is_tainted(cluster, victim), "the node is marked", 300)
            assert places(queue) == {victim: pod}, "a mark ends no pod"
            queue.kubectl("delete", "pod", pod, "--wait=false")
            moved = wait_until(lambda: places(queue).keys() - {victim, ""}, "it moves", 120)
            pod = places(queue)[moved.pop()]
            wait_until(lambda: "trains" in log_of(queue, pod), "it trains", 120)
        finally:
            with contextlib.suppress(AssertionError):
                cluster.kubectl("taint", "node", victim, f"{UNFIT}-")
            cluster.kubectl("annotate", "node", victim, f"{STATE}-")
