"""Disruption of a group by its cluster: a drained node and a lost node."""

from __future__ import annotations

import pytest

from hack.local_cluster.settings import Node, nodes
from tests.e2e.test_group_preemption import comes_back
from tests.helpers.cluster_faults import lose_node
from tests.helpers.group_pods import install, rank, wait_for_output
from tests.helpers.kube import Namespace


def prefers(node: Node) -> dict:
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node.name]}
    preference = {"weight": 100, "preference": {"matchExpressions": [expression]}}
    return {
        "spec": {
            "affinity": {
                "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}
            }
        }
    }


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


def ranks(space: Namespace) -> dict[str, dict]:
    return {host: rank(space, host) for host in ("server-0", "client-0")}


def comes_back_on_the_first_node(space: Namespace, before: dict[str, dict]) -> None:
    comes_back(space, before, 180)
    assert rank(space, "server-0")["spec"]["nodeName"] == nodes()[0].name


def test_a_drained_node(group: Namespace) -> None:
    before, node = ranks(group), nodes()[1].name
    # what other tests left behind may not leave the node
    ours = "--pod-selector=app.kubernetes.io/instance=grp"
    group.cluster.kubectl("drain", node, ours, "--delete-emptydir-data", "--timeout=120s")
    try:
        comes_back_on_the_first_node(group, before)
    finally:
        group.cluster.kubectl("uncordon", node)


def test_a_lost_node(group: Namespace) -> None:
    before = ranks(group)
    lose_node(group.cluster, nodes()[1])
    comes_back_on_the_first_node(group, before)
