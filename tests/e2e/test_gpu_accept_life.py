"""Acceptance while its cluster changes: a node that joins later, a killed pod, two releases beside each other."""

from __future__ import annotations

from tests.e2e.test_gpu_accept import NODES, QUICKLY, fleet_is_ready, fleet_of, fleet_with, node_pods, report_of
from tests.helpers.kube import Namespace, wait_until


def test_a_node_that_joins_later_is_tested_and_missing_until_then(namespace: Namespace) -> None:
    first, *later = namespace.cluster.schedulable_nodes()
    label = f"{namespace.name}/tested"
    namespace.cluster.kubectl("label", "node", first, f"{label}=yes")
    try:
        settings = ["--set", f"device=cpu,nodes={1 + len(later)}", "--set-json", f'nodeSelector={{"{label}": "yes"}}']
        namespace.install("accept", "gpu-accept", *settings, *QUICKLY)

        def tested() -> dict | None:
            fleet = fleet_of(namespace)
            return fleet if fleet and [node["node"] for node in fleet["nodes"]] == [first] else None

        fleet = wait_until(tested, "the first node has reported", 240)
        assert (fleet["verdict"], fleet["coverage"]["nodes_reported"]) == ("INCOMPLETE", 1)
        assert not fleet_is_ready(namespace)
        namespace.cluster.kubectl("label", "node", *later, f"{label}=yes")
        fleet_with(namespace, "PASS")
        namespace.kubectl("rollout", "status", "deployment/accept-gpu-accept-fleet", "--timeout=60s")
    finally:
        namespace.cluster.kubectl("label", "node", first, *later, f"{label}-")


def test_a_pod_that_is_killed_in_the_middle_is_tested_again(namespace: Namespace) -> None:
    nodes = namespace.cluster.schedulable_nodes()
    namespace.install("accept", "gpu-accept", "--set", f"device=cpu,nodes={len(nodes)}", *QUICKLY)

    def testing() -> dict | None:
        running = [pod for pod in node_pods(namespace) if "running" in init_state(pod)]
        return running[0] if running else None

    pod = wait_until(testing, "a pod tests its node", 120)
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    namespace.kubectl("delete", "pod", name, "--grace-period=0", "--force")
    fleet = fleet_with(namespace, "PASS")
    assert uid not in {pod["metadata"]["uid"] for pod in node_pods(namespace)}
    assert {node["pod"] for node in fleet["nodes"]} == {pod["metadata"]["name"] for pod in node_pods(namespace)}


def test_nodes_whose_pods_cannot_start_are_named_with_the_reason(namespace: Namespace) -> None:
    """As nodes of which a GPU is gone: the pod asks for more than its node has."""
    nodes = namespace.cluster.schedulable_nodes()
    settings = f"device=cpu,nodes={len(nodes)},resources.requests.cpu=1000,fleet.listPods=true"
    namespace.install("accept", "gpu-accept", "--set", settings, *QUICKLY)

    def named() -> dict | None:
        fleet = fleet_of(namespace)
        return fleet if fleet and fleet["coverage"]["missing"] == nodes else None

    fleet = wait_until(named, "the page names the nodes", 120)
    assert fleet["verdict"] == "INCOMPLETE" and not fleet_is_ready(namespace)
    reasons = {suspect["node"]: suspect["why"] for suspect in fleet["suspects"]}
    assert sorted(reasons) == nodes and all("Insufficient cpu" in reason for reason in reasons.values()), reasons


def test_the_checks_across_nodes_follow_those_of_the_nodes(namespace: Namespace) -> None:
    """On the same page, here with a slow rank. Without a fault: tests/worker/test_fleet_world_plan.py."""
    nodes = namespace.cluster.schedulable_nodes()
    settings = ["--set", f"device=cpu,nodes={len(nodes)},world.enabled=true", *QUICKLY]
    settings += ["--set-json", 'world.checks=["stragglers"]', "--set-json", 'world.args=["--inject=slow-rank"]']
    namespace.install("accept", "gpu-accept", *settings)

    def ended() -> dict | None:
        found = fleet_of(namespace)
        return found if found and found["worlds"] else None

    # Two more starts of PyTorch on each node than other tests have.
    fleet = wait_until(ended, "the checks across nodes have ended", 480)
    assert {node["reported_verdict"] for node in fleet["nodes"]} == {"PASS"} and fleet["verdict"] == "FAIL"
    assert [world["nodes"] for world in fleet["worlds"]] == [nodes]
    failed = [found for found in fleet["findings"] if found["verdict"] == "FAIL"]
    assert failed and {found["found_by"] for found in failed} == {"world"}, failed


def init_state(pod: dict) -> dict:
    return (pod["status"].get("initContainerStatuses") or [{"state": {}}])[0]["state"]


def test_two_releases_do_not_see_each_other(namespace: Namespace) -> None:
    """In one namespace, one with a fault put in on purpose."""
    nodes = namespace.cluster.schedulable_nodes()
    settings = ["--set", f"device=cpu,nodes={len(nodes)}", *QUICKLY]
    namespace.install("accept", "gpu-accept", *settings)
    namespace.install("other", "gpu-accept", *settings, "--set", "inject=nan-product")
    fleet_with(namespace, "PASS")

    def failed() -> dict | None:
        fleet = fleet_of(namespace, "other")
        return fleet if fleet and fleet["verdict"] == "FAIL" and len(fleet["nodes"]) == len(nodes) else None

    fleet = wait_until(failed, "the other release fails", 240)
    assert all(node["pod"].startswith("other-") for node in fleet["nodes"])
    assert all(node["pod"].startswith("accept-") for node in fleet_with(namespace, "PASS")["nodes"])
    for release, verdict in (("accept", "PASS"), ("other", "FAIL")):
        pods = namespace.objects("pods", f"{NODES},app.kubernetes.io/instance={release}")
        assert {report_of(namespace, pod["metadata"]["name"])["verdict"] for pod in pods} == {verdict}
