"""Disruption of a group by its cluster: a drained node and a lost node."""

from __future__ import annotations

import pytest

from hack.local_cluster.settings import Node, nodes
from tests.helpers.cluster_faults import lose_node
from tests.helpers.group_pods import execute, install, rank, wait_for_output
from tests.helpers.kube import Namespace, phases, wait_until


def prefers(node: Node) -> dict:
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node.name]}
    preference = {"weight": 100, "preference": {"matchExpressions": [expression]}}
    return {"spec": {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}}}


@pytest.fixture
def group(namespace: Namespace) -> Namespace:
    """server-0 on the second node, client-0 on the first."""
    run = "echo serving; until [ -e /tmp/end ]; do sleep 0.2; done"
    tasks = {
        task: {"run": run, "podTemplate": prefers(node)}
        for task, node in zip(("client", "server"), nodes(), strict=True)
    }
    install(namespace, tasks, name="two")
    for host in ("server-0", "client-0"):
        wait_for_output(namespace, host, "serving")
    assert rank(namespace, "server-0")["spec"]["nodeName"] == nodes()[1].name
    return namespace


def replaced(space: Namespace, uid: str) -> bool:
    pod = rank(space, "server-0")
    return bool(pod) and pod["metadata"]["uid"] != uid


def comes_back(space: Namespace, client: dict) -> None:
    wait_for_output(space, "server-0", "serving", 180)
    server = rank(space, "server-0")
    assert server["spec"]["nodeName"] == nodes()[0].name
    wait_until(
        lambda: server["status"]["podIP"] in execute(space, "client-0", "getent", "ahostsv4", "server-0.two"),
        "client-0 resolves server-0.two to the new pod", 30,
    )  # fmt: skip
    assert rank(space, "client-0")["metadata"]["uid"] == client["metadata"]["uid"]
    assert space.objects("jobset")[0]["status"].get("restarts", 0) == 0
    for host in ("server-0", "client-0"):
        execute(space, host, "touch", "/tmp/end")
    wait_until(lambda: phases(space.pods("grp")).get("server-0") == "Succeeded", "the server succeeds", 60)


def test_a_drained_node(group: Namespace) -> None:
    client = rank(group, "client-0")
    node = nodes()[1].name
    old = rank(group, "server-0")["metadata"]["uid"]
    ours = "--pod-selector=app.kubernetes.io/instance=grp"  # what other tests left behind may not leave the node
    group.cluster.kubectl("drain", node, ours, "--delete-emptydir-data", "--timeout=120s")
    try:
        wait_until(lambda: replaced(group, old), "a new pod")
        comes_back(group, client)
    finally:
        group.cluster.kubectl("uncordon", node)


def test_a_lost_node(group: Namespace) -> None:
    client = rank(group, "client-0")
    old = rank(group, "server-0")["metadata"]["uid"]
    lose_node(group.cluster, nodes()[1])
    wait_until(lambda: replaced(group, old), "a new pod", 120)
    comes_back(group, client)
