"""gpu-accept on a cluster that loses a node in the middle of its test, and the page with it."""

from __future__ import annotations

import pytest

from hack.local_cluster.settings import nodes
from tests.e2e.test_gpu_accept import accept, fleet_is_ready, fleet_of, fleet_when, node_pods, waits
from tests.e2e.test_gpu_accept_life import init_state
from tests.helpers.cluster_faults import lose_node
from tests.helpers.kube import Namespace, wait_until

# A test that lasts, so that a node can be lost in the middle of it.
SLOWLY = ("--set-json", 'checks=["environment", "compute", "training", "collectives", "links"]')

pytestmark = pytest.mark.matrix


def test_a_page_whose_node_is_drained_comes_back_with_its_verdict(namespace: Namespace) -> None:
    count = len(nodes())
    accept(namespace, checks=SLOWLY)
    wait_until(lambda: fleet_is_ready(namespace), "the fleet passes", 240)
    (page,) = namespace.objects("pods", "app.kubernetes.io/component=fleet")
    node, uid = page["spec"]["nodeName"], page["metadata"]["uid"]
    tested = {pod["metadata"]["uid"] for pod in node_pods(namespace)}
    ours = "--pod-selector=app.kubernetes.io/component=fleet,app.kubernetes.io/instance=accept"
    namespace.cluster.kubectl("drain", node, ours, "--delete-emptydir-data", "--timeout=120s")
    try:

        def back() -> bool:
            pages = namespace.objects("pods", "app.kubernetes.io/component=fleet")
            return fleet_is_ready(namespace) and uid not in {
                pod["metadata"]["uid"] for pod in pages
            }

        wait_until(back, "the page is back, and ready again", 120)
        fleet = fleet_of(namespace)
        assert (fleet["verdict"], len(fleet["nodes"])) == ("PASS", count)
        assert {pod["metadata"]["uid"] for pod in node_pods(namespace)} == tested, (
            "no node was tested again"
        )
    finally:
        namespace.cluster.kubectl("uncordon", node)


def test_a_node_that_is_lost_in_the_middle_of_its_test_is_missing(namespace: Namespace) -> None:
    """The machine is gone, and later its Node object, as clouds do. The page comes back on the
    other node.

    The last test of this file: the cluster has one node afterwards.
    """
    kept, lost = nodes()
    label = f"{namespace.name}/page"
    namespace.cluster.kubectl("label", "node", lost.name, f"{label}=here")
    where = f'fleet.podTemplate.spec.nodeSelector={{"{label}": "here"}}'
    accept(namespace, "--set-json", where, checks=SLOWLY)

    def testing() -> bool:
        pods = [pod for pod in node_pods(namespace) if pod["spec"].get("nodeName") == lost.name]
        return bool(pods) and "running" in init_state(pods[0])

    wait_until(testing, "the node tests", 120)
    namespace.cluster.kubectl("label", "node", kept.name, f"{label}=here")
    lose_node(namespace.cluster, lost)

    fleet = fleet_when(
        namespace,
        lambda fleet: fleet["nodes"] and not waits(fleet),
        "the page is back, and waits for no pod",
    )
    assert [(node["node"], node["verdict"]) for node in fleet["nodes"]] == [(kept.name, "PASS")]
    assert (fleet["verdict"], fleet["coverage"]["nodes_expected"]) == ("INCOMPLETE", 2)
    assert not fleet_is_ready(namespace)
