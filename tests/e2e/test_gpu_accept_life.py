"""Acceptance while its cluster changes: a node that joins later, a killed pod, two releases beside
each other.
"""

from tests.e2e.test_gpu_accept import (
    NODES,
    accept,
    fleet_is_ready,
    fleet_when,
    fleet_with,
    node_pods,
    passes,
    report_of,
)
from tests.helpers.kube import wait_until


def test_a_node_that_joins_later_is_tested_and_missing_until_then(namespace):
    first, *later = namespace.cluster.schedulable_nodes()
    label = f"{namespace.name}/tested"
    namespace.cluster.kubectl("label", "node", first, f"{label}=yes")
    try:
        accept(namespace, "--set-json", f'nodeSelector={{"{label}": "yes"}}')
        fleet = fleet_when(
            namespace,
            lambda fleet: [each["node"] for each in fleet["nodes"]] == [first],
            "the first node has reported",
        )
        assert (fleet["verdict"], fleet["coverage"]["nodes_reported"]) == ("INCOMPLETE", 1)
        assert not fleet_is_ready(namespace)
        namespace.cluster.kubectl("label", "node", *later, f"{label}=yes")
        fleet_with(namespace, "PASS")
        passes(namespace)
    finally:
        namespace.cluster.kubectl("label", "node", first, *later, f"{label}-")


def test_a_pod_that_is_killed_in_the_middle_is_tested_again(namespace):
    accept(namespace)

    def testing():
        running = [pod for pod in node_pods(namespace) if "running" in init_state(pod)]
        return running[0] if running else None

    pod = wait_until(testing, "a pod tests its node", 120)
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    namespace.kubectl("delete", "pod", name, "--grace-period=0", "--force")
    fleet = fleet_with(namespace, "PASS")
    assert uid not in {pod["metadata"]["uid"] for pod in node_pods(namespace)}
    assert {node["pod"] for node in fleet["nodes"]} == {
        pod["metadata"]["name"] for pod in node_pods(namespace)
    }


def test_nodes_whose_pods_cannot_start_are_named_with_the_reason(namespace):
    """As nodes of which a GPU is gone: the pod asks for more than its node has."""
    nodes = accept(namespace, "--set", "resources.requests.cpu=1000,fleet.listPods=true")
    fleet = fleet_when(
        namespace,
        lambda fleet: fleet["coverage"]["missing"] == nodes,
        "the page names the nodes",
        120,
    )
    assert fleet["verdict"] == "INCOMPLETE" and not fleet_is_ready(namespace)
    reasons = {suspect["node"]: suspect["why"] for suspect in fleet["suspects"]}
    assert sorted(reasons) == nodes and all(
        "Insufficient cpu" in reason for reason in reasons.values()
    ), reasons


def test_the_checks_across_nodes_follow_those_of_the_nodes(namespace):
    """On the same page, here with a slow rank. Without a fault:
    tests/worker/test_fleet_world_plan.py.
    """
    settings = [
        "--set-json",
        'world.checks=["stragglers"]',
        "--set-json",
        'world.args=["--inject=slow-rank"]',
    ]
    nodes = accept(namespace, "--set", "world.enabled=true", *settings)
    # Two more starts of PyTorch on each node than other tests have.
    fleet = fleet_when(
        namespace, lambda fleet: fleet["worlds"], "the checks across nodes have ended", 480
    )
    assert {node["reported_verdict"] for node in fleet["nodes"]} == {"PASS"} and fleet[
        "verdict"
    ] == "FAIL"
    assert [world["nodes"] for world in fleet["worlds"]] == [nodes]
    failed = [found for found in fleet["findings"] if found["verdict"] == "FAIL"]
    assert failed and {found["found_by"] for found in failed} == {"world"}, failed


def init_state(pod: dict) -> dict:
    return (pod["status"].get("initContainerStatuses") or [{"state": {}}])[0]["state"]


def test_two_releases_do_not_see_each_other(namespace):
    """In one namespace, one with a fault put in on purpose."""
    nodes = accept(namespace)
    accept(namespace, "--set", "inject=nan-product", release="other")
    fleet_with(namespace, "PASS")
    fleet = fleet_when(
        namespace,
        lambda fleet: fleet["verdict"] == "FAIL" and len(fleet["nodes"]) == len(nodes),
        "the other release fails",
        release="other",
    )
    assert all(node["pod"].startswith("other-") for node in fleet["nodes"])
    assert all(node["pod"].startswith("accept-") for node in fleet_with(namespace, "PASS")["nodes"])
    for release, verdict in (("accept", "PASS"), ("other", "FAIL")):
        pods = namespace.objects("pods", f"{NODES},app.kubernetes.io/instance={release}")
        assert {report_of(namespace, pod["metadata"]["name"])["verdict"] for pod in pods} == {
            verdict
        }
