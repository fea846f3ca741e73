"""The acceptance DaemonSet as a CPU rehearsal on every node."""

from __future__ import annotations

import json

from jsonschema import Draft7Validator
from kube import REPO, Namespace, run, wait_until

SCHEMA = json.loads((REPO / "schemas" / "report.schema.json").read_text())


def report_of(space: Namespace, pod: str) -> dict:
    """Read a node's report the way a user does."""
    path = f"/api/v1/namespaces/{space.name}/pods/{pod}:8080/proxy/report.json"
    return json.loads(space.cluster.kubectl("get", "--raw", path))


def finished(space: Namespace) -> list[dict] | None:
    """The pods, once every one of them holds a report."""
    pods = space.pods("accept")
    running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
    return pods if pods and running == pods else None


def test_every_node_passes_and_hands_out_its_report(namespace: Namespace) -> None:
    namespace.install("accept", "gpu-accept", "--set", "device=cpu")
    namespace.kubectl("rollout", "status", "daemonset/accept-gpu-accept", "--timeout=240s")
    pods = namespace.pods("accept")
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == namespace.cluster.schedulable_nodes()
    for pod in pods:
        report = report_of(namespace, pod["metadata"]["name"])
        Draft7Validator(SCHEMA).validate(report)
        assert (report["node"], report["verdict"], report["rehearsal"]) == (pod["spec"]["nodeName"], "PASS", True)
        assert {check["name"]: check["verdict"] for check in report["checks"]} == dict.fromkeys(
            ["environment", "compute", "training", "collectives"], "PASS"
        )
        numbers = {m["name"]: m["value"] for check in report["checks"] for m in check["measurements"]}
        assert numbers["compute_cpu"] > 0 and numbers["allreduce_bus_bandwidth"] > 0
        said = namespace.logs(pod["metadata"]["name"], "accept")
        for tag in ("[ENV]", "[COMPUTE]", "[TRAIN]", "[DDP]", "[RESULT]"):
            assert tag in said


def test_a_failing_node_is_not_ready_and_says_why_once(namespace: Namespace) -> None:
    namespace.install("accept", "gpu-accept", "--set", "device=cpu", "--set", "limits.computeGflops=1000000")
    for pod in wait_until(lambda: finished(namespace), "every node has a report", 240):
        report = report_of(namespace, pod["metadata"]["name"])
        Draft7Validator(SCHEMA).validate(report)
        assert report["verdict"] == "FAIL"
        assert "below the limit of 1e+06 (limits.computeGflops)" in report["reason"]
        init = pod["status"]["initContainerStatuses"][0]
        assert init["restartCount"] == 0
        assert init["state"]["terminated"]["message"].startswith("FAIL (CPU rehearsal): compute: cpu: ")
        assert pod["status"]["containerStatuses"][0]["ready"] is False
    # A new run id tests again, although no pod is ready.
    run(
        "helm", "upgrade", "accept", str(REPO / "charts" / "gpu-accept"), "--namespace", namespace.name,
        "--reuse-values", "--set-json", "limits.computeGflops=0.001", "--set-string", "runId=2",
    )  # fmt: skip
    namespace.kubectl("rollout", "status", "daemonset/accept-gpu-accept", "--timeout=240s")
    for pod in namespace.pods("accept"):
        assert report_of(namespace, pod["metadata"]["name"])["run_id"] == "2"
