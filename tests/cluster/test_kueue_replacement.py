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
from tests.e2e.test_kueue_runs import complete
from tests.helpers.ddp_pods import TRAIN, node_pods, pod_name, start, wait_until_training
from tests.helpers.kube import Cluster, Namespace, wait_until

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


def placed(space: Namespace) -> list[str]:
    """Nodes of the pods that are there."""
    return sorted(pod["spec"].get("nodeName", "") for pod in node_pods(space))


def test_a_run_leaves_the_node_that_has_our_mark(queue: Namespace) -> None:
    cluster = queue.cluster
    settings = f"nodes=2,maxRestarts=3,kueue.queueName=queue,{ONE_PER_NODE}"
    template = f"podTemplate.metadata.annotations={BY_NODE}"
    start(queue, "--set", settings, "--set-json", template, program=TRAIN.replace("FAULT", "pass"))
    wait_until_training(queue)
    before = placed(queue)
    victim = next(
        pod["spec"]["nodeName"]
        for pod in node_pods(queue)
        if pod["metadata"]["name"] == pod_name(queue, 1)
    )
    try:
        install(queue, victim, 1, "--set", "inject=nan-product")
        wait_until(lambda: is_tainted(cluster, victim), "the node is marked", 300)
        assert placed(queue) == before, "a mark ends no pod"
        queue.kubectl("delete", "pod", pod_name(queue, 1), "--wait=false")
        wait_until(lambda: complete(queue, "run"), "the run has ended", 300)
        assert placed(queue)[0] and victim not in placed(queue)
    finally:
        with contextlib.suppress(AssertionError):
            cluster.kubectl("taint", "node", victim, f"{UNFIT}-")
        cluster.kubectl("annotate", "node", victim, f"{STATE}-")
