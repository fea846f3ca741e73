"""gpu-accept on a cluster that loses a node: the node in the middle of its test, and the node with the page."""

from __future__ import annotations

import pytest

from hack.local_cluster.settings import Node, nodes
from tests.e2e.test_gpu_accept import QUICKLY, fleet_is_ready, fleet_with, node_pods
from tests.e2e.test_gpu_accept_life import SLOWLY, fleet_of, init_state
from tests.helpers.cluster_faults import kill_node
from tests.helpers.kube import Namespace, wait_until

pytestmark = pytest.mark.matrix


def install(space: Namespace, page_on: str, *settings: str) -> None:
    """gpu-accept on both nodes, with the page on a node that has the label `page_on`."""
    where = f'fleet.nodeSelector={{"{page_on}": "here"}}'
    space.install("accept", "gpu-accept", "--set", f"device=cpu,nodes={len(nodes())}", "--set-json", where, *settings)


def lose(space: Namespace, node: Node) -> None:
    """As clouds do: the machine is gone, and later its Node object."""
    kill_node(node)
    wait_until(
        lambda: "NotReady" in space.cluster.kubectl("get", "node", node.name, "--no-headers"), "the node is lost", 90
    )
    space.cluster.kubectl("delete", "node", node.name)


def test_a_node_that_is_lost_in_the_middle_of_its_test_is_missing(namespace: Namespace) -> None:
    """The other node passes, and the fleet never does."""
    kept, lost = nodes()
    label = f"{namespace.name}/page"
    namespace.cluster.kubectl("label", "node", kept.name, f"{label}=here")
    install(namespace, label, *SLOWLY)

    def testing() -> bool:
        pods = [pod for pod in node_pods(namespace) if pod["spec"].get("nodeName") == lost.name]
        return bool(pods) and "running" in init_state(pods[0])

    wait_until(testing, "the node tests", 120)
    lose(namespace, lost)

    def settled() -> dict | None:
        fleet = fleet_of(namespace)
        waiting = fleet and [found for found in fleet["findings"] if "has no report yet" in found["reason"]]
        return fleet if fleet and fleet["nodes"] and not waiting else None

    fleet = wait_until(settled, "the other node has reported, and the lost one is no longer waited for", 240)
    assert [(node["node"], node["verdict"]) for node in fleet["nodes"]] == [(kept.name, "PASS")]
    assert (fleet["verdict"], fleet["coverage"]["nodes_expected"]) == ("INCOMPLETE", 2)
    assert not fleet_is_ready(namespace)


def test_the_page_comes_back_elsewhere_with_the_reports_of_running_pods(namespace: Namespace) -> None:
    """The page's node is lost after everything passed. A node that is gone no longer counts as passed."""
    kept, lost = nodes()
    label = f"{namespace.name}/page"
    namespace.cluster.kubectl("label", "node", lost.name, f"{label}=here")
    install(namespace, label, *QUICKLY)
    fleet_with(namespace, "PASS")
    namespace.cluster.kubectl("label", "node", kept.name, f"{label}=here")
    lose(namespace, lost)

    def moved() -> dict | None:
        fleet = fleet_of(namespace)
        return fleet if fleet and [node["node"] for node in fleet["nodes"]] == [kept.name] else None

    fleet = wait_until(moved, "the page is back, with the node that is left", 240)
    assert fleet["verdict"] == "INCOMPLETE" and not fleet_is_ready(namespace)
