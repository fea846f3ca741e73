"""Acceptance as a CPU rehearsal on every node: DaemonSet, Job, and the page of all nodes."""

import json
import re
import subprocess
import urllib.request
from collections.abc import Callable

import pytest
from jsonschema import Draft7Validator

from tests.helpers.kube import REPO, Namespace, wait_until

SCHEMA = json.loads((REPO / "schemas" / "report.schema.json").read_text())
NODES = "app.kubernetes.io/component=node"
QUICKLY = ("--set-json", 'checks=["environment", "compute"]')
EXIT_CODES = {"PASS": 0, "FAIL": 1}


def node_pods(space: Namespace) -> list[dict]:
    return space.objects("pods", NODES)


def report_of(space: Namespace, pod: str) -> dict:
    """The file of a node's report."""
    return json.loads(
        space.kubectl("exec", pod, "-c", "report", "--", "cat", "/reports/report.json")
    )


def served(space: Namespace, path: str, release: str = "accept") -> str:
    """What the collector serves, by the command of the chart's notes. Raises AssertionError if
    nothing answers yet.

    port-forward reaches the pod through its kubelet, so that no NetworkPolicy is in the way.
    """
    target = f"service/{release}-gpu-accept-fleet"
    command = ["kubectl", "--namespace", space.name, "port-forward", target, ":http"]
    forward = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = forward.stdout.readline()
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        assert found, f"{' '.join(command)}: {line}{forward.stderr.read()}"
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(f"http://127.0.0.1:{found[1]}{path}", timeout=30) as response:
                return response.read().decode()
        except OSError as error:
            raise AssertionError(f"{target} does not answer: {error}") from None
    finally:
        forward.kill()
        forward.communicate()


def fleet_of(space: Namespace, release: str = "accept") -> dict | None:
    """The result of the fleet; None while the pod does not run, or the Service does not know it
    yet.
    """
    try:
        return json.loads(served(space, "/report.json", release))
    except AssertionError as error:
        print(error)
        return None


def waits(fleet: dict) -> bool:
    return any("has no report yet" in finding["reason"] for finding in fleet["findings"])


def fleet_when(
    space: Namespace,
    holds: Callable[[dict], object],
    what: str,
    deadline_s: float = 240,
    release: str = "accept",
) -> dict:
    """The result of the fleet once this holds of it."""

    def found():
        fleet = fleet_of(space, release)
        return fleet if fleet and holds(fleet) else None

    return wait_until(found, what, deadline_s)


def run_of(report: dict) -> str:
    """The value `runId` of a report's run."""
    return report["run_id"].rpartition("-")[0]


def fleet_with(space: Namespace, verdict: str, run_id: str = "1") -> dict:
    """The result of the fleet once it has this verdict on all nodes of the cluster."""
    nodes = space.cluster.schedulable_nodes()

    def complete(fleet):
        print(fleet["verdict"], fleet["reason"])
        reported = [node["node"] for node in fleet["nodes"] if run_of(node) == run_id]
        return sorted(reported) == nodes and fleet["verdict"] == verdict and not waits(fleet)

    return fleet_when(space, complete, f"{verdict} for {len(nodes)} nodes")


def accept(
    space: Namespace, *settings: str, release: str = "accept", checks: tuple[str, ...] = QUICKLY
) -> list[str]:
    """Install an acceptance of every node; the names of the nodes."""
    nodes = space.cluster.schedulable_nodes()
    space.install(
        release, "gpu-accept", "--set", f"device=cpu,nodes={len(nodes)}", *checks, *settings
    )
    return nodes


def passes(space: Namespace, what: str = "deployment/accept-gpu-accept-fleet"):
    space.kubectl("rollout", "status", what, "--timeout=240s")


def merged(space: Namespace) -> dict:
    """The reports that the page saves, merged by the command of its pod, with the result as JSON."""
    reports = served(space, "/reports")
    command = (
        f"accept-report merge - --expect-nodes={len(reports.splitlines())} --json=/tmp/fleet.json"
    )
    script = f"{command} || true; cat /tmp/fleet.json"
    output = space.kubectl(
        "exec", "-i", "deployment/accept-gpu-accept-fleet", "--", "sh", "-c", script, input=reports
    )
    return json.loads(output[output.index('{"verdict"') :])


def finished(space: Namespace) -> list[dict] | None:
    """The pods, once every one of them hands out a report."""
    pods = node_pods(space)
    if not pods or [pod for pod in pods if pod["status"]["phase"] != "Running"]:
        return None
    try:
        return pods if all(report_of(space, pod["metadata"]["name"]) for pod in pods) else None
    except AssertionError as error:  # it runs, and does not listen yet
        print(error)
        return None


def reports(space: Namespace) -> list[tuple[dict, dict]]:
    """Each pod with its report, which fits the schema."""
    pods = wait_until(lambda: finished(space), "every node has a report", 280)
    found = [(pod, report_of(space, pod["metadata"]["name"])) for pod in pods]
    for _, report in found:
        Draft7Validator(SCHEMA).validate(report)
    return found


def fleet_is_ready(space: Namespace) -> bool:
    (deployment,) = space.objects("deployments")
    return bool(deployment["status"].get("readyReplicas"))


def selector(system: str) -> str:
    return f'nodeSelector={{"kubernetes.io/os": "{system}"}}'


def test_no_matching_node_and_too_few_nodes_are_never_ready(namespace):
    nodes = namespace.cluster.schedulable_nodes()
    namespace.install(
        "accept",
        "gpu-accept",
        "--set",
        "device=cpu,nodes=1",
        "--set-json",
        selector("no-such"),
        *QUICKLY,
    )

    fleet = fleet_when(namespace, lambda fleet: not waits(fleet), "the page is there", 120)
    assert fleet["verdict"] == "INCOMPLETE" and not fleet_is_ready(namespace)
    upgrade(
        namespace,
        "--set",
        f"nodes={len(nodes) + 1}",
        "--set-json",
        selector("linux"),
        "--set-string",
        "runId=2",
    )
    fleet = fleet_with(namespace, "INCOMPLETE", "2")
    assert fleet["coverage"]["nodes_reported"] == len(nodes) and not fleet_is_ready(namespace)
    upgrade(namespace, "--set-json", f"nodes={json.dumps(nodes)}", "--set-string", "runId=3")
    passes(namespace)


def upgrade(space: Namespace, *settings: str):
    chart = str(REPO / "charts" / "gpu-accept")
    space.helm("upgrade", "accept", chart, "--reuse-values", *settings)


def test_every_node_passes_and_hands_out_its_report(namespace):
    nodes = accept(namespace, checks=())
    found = reports(namespace)
    assert sorted(pod["spec"]["nodeName"] for pod, _ in found) == nodes
    for pod, report in found:
        assert (report["node"], report["requested"]["device"]) == (pod["spec"]["nodeName"], "cpu")
        verdicts = report["verdicts"]
        assert verdicts.keys() >= {
            "environment",
            "compute",
            "memory",
            "training",
            "collectives",
            "storage",
        }
        assert set(verdicts.values()) <= {"PASS", "WARN", "SKIP"}, report["reason"]
        output = namespace.logs(pod, "accept")
        for tag in ("[ENV]", "[COMPUTE]", "[TRAIN]", "[DDP]", "[RESULT]"):
            assert tag in output
    passes(namespace, "daemonset/accept-gpu-accept")
    verdict = "WARN" if "WARN" in {report["verdict"] for _, report in found} else "PASS"
    fleet = fleet_with(namespace, verdict)
    passes(namespace)
    namespace.helm("test", "accept", "--timeout", "120s")
    assert fleet["coverage"]["nodes_expected"] == fleet["coverage"]["nodes_reported"] == len(nodes)
    assert served(namespace, "/").startswith("<!DOCTYPE html>") and fleet["rehearsal"]
    assert f'gpu_accept_fleet_verdict{{verdict="{verdict}"}} 1' in served(namespace, "/metrics")
    assert "<!DOCTYPE html>" in served(namespace, "/page.html")
    again = merged(namespace)
    assert (again["verdict"], again["nodes"]) == (fleet["verdict"], fleet["nodes"])


def test_a_failing_node_is_not_ready_and_says_why_once(namespace):
    accept(namespace, "--set", "limits.gemm_fp32=70")
    for pod, report in reports(namespace):
        assert report["verdict"] == "FAIL"
        assert "below the limit of 70 (limits.gemm_fp32)" in report["reason"]
        init = pod["status"]["initContainerStatuses"][0]
        assert init["restartCount"] == 0
        message = init["state"]["terminated"]["message"]
        assert (
            message.startswith("FAIL (CPU rehearsal; ") and " left out): compute: cpu: " in message
        )
        assert pod["status"]["containerStatuses"][0]["ready"] is False
    assert "limits.gemm_fp32" in fleet_with(namespace, "FAIL")["reason"]
    assert not fleet_is_ready(namespace)
    with pytest.raises(AssertionError):
        namespace.helm("test", "accept", "--timeout", "120s")
    # A new run id tests again, although no pod is ready, and what the last run found no longer
    # counts.
    upgrade(namespace, "--set-json", "limits.gemm_fp32=0.000001", "--set-string", "runId=2")
    passes(namespace, "daemonset/accept-gpu-accept")
    for pod in node_pods(namespace):
        assert run_of(report_of(namespace, pod["metadata"]["name"])) == "2"
    assert {run_of(node) for node in fleet_with(namespace, "PASS", "2")["nodes"]} == {"2"}


def test_an_upgrade_of_the_pods_counts_no_report_of_those_before(namespace):
    """Also without a new run id: the new Job waits for a node, and the old one passed."""
    accept(namespace, "--set", "workload=job")
    fleet_with(namespace, "PASS")
    upgrade(namespace, "--set", "workload=job,nodeSelector.nope=x")
    fleet = fleet_when(namespace, lambda fleet: fleet["verdict"] != "PASS", "it no longer passes")
    assert fleet["coverage"]["nodes_reported"] == 0 and not fleet_is_ready(namespace)


def ended(space: Namespace, condition: str) -> list[dict]:
    """The pods of the Job, after it has ended so."""
    (job,) = [job for job in space.objects("jobs") if "deletionTimestamp" not in job["metadata"]]
    space.kubectl(
        "wait", f"job/{job['metadata']['name']}", f"--for=condition={condition}", "--timeout=240s"
    )
    return [
        pod
        for pod in node_pods(space)
        if pod["metadata"]["labels"]["job-name"] == job["metadata"]["name"]
    ]


def test_a_job_tests_each_node_once_and_ends_with_the_verdict(namespace):
    """First with a fault put in on purpose: each node finds it, and the page shows it."""
    nodes = accept(namespace, "--set", "workload=job,inject=nan-product")
    for verdict, condition in (("FAIL", "Failed"), ("PASS", "Complete")):
        pods = ended(namespace, condition)
        assert sorted(pod["spec"]["nodeName"] for pod in pods) == nodes
        codes = {
            pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] for pod in pods
        }
        assert codes == {EXIT_CODES[verdict]}
        fleet = fleet_with(namespace, verdict, "1" if verdict == "FAIL" else "2")
        if verdict == "FAIL":
            assert {finding["check"] for finding in fleet["findings"]} == {"compute"}, fleet[
                "findings"
            ]
            assert any("nan-product" in note for note in fleet["notes"])
            assert merged(namespace)["verdict"] == "FAIL"
            upgrade(namespace, "--set", "inject=", "--set-string", "runId=2")
