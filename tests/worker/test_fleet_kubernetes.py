"""Nodes without a report are named with the reason that Kubernetes has, from a stand-in of its API
over TLS.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuworker.fleet.collector import look
from gpuworker.fleet.kubernetes import PodList, pod_of
from gpuworker.fleet.report_store import ReportStore
from gpuworker.judgement import kinds as acts
from gpuworker.judgement.sources import Expected
from tests.helpers.fleet_reports import complete_report, source
from tests.helpers.node_api import api as api
from tests.helpers.node_api import client

SELECTOR = "app.kubernetes.io/instance=accept,app.kubernetes.io/component=node"


def pod(node: str = "", *, wanted: str = "", phase: str = "Pending", **status: object) -> dict:
    """A pod as the API lists it. `wanted`: the node of which the controller of a DaemonSet wants
    it.
    """
    spec: dict = {"nodeName": node} if node else {}
    if wanted:
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [wanted]}]}
        required = {"nodeSelectorTerms": [term]}
        spec["affinity"] = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
        }
    return {
        "metadata": {"name": f"accept-{node or wanted}"},
        "spec": spec,
        "status": {"phase": phase, **status},
    }


def condition(kind: str, status: str, reason: str, message: str) -> dict:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def accept(**state: object) -> dict:
    return {"name": "accept", "state": state, "lastState": {}}


NO_GPU = condition(
    "PodScheduled",
    "False",
    "Unschedulable",
    "0/2 nodes are available: 1 Insufficient nvidia.com/gpu.",
)
EVICTED = condition(
    "DisruptionTarget", "True", "TerminationByKubelet", "The node was low on resource: memory."
)
KILLED = {"exitCode": 137, "reason": "OOMKilled"}
RUNNING = {"startedAt": "2026-01-05T12:00:00Z"}
STATES = {
    "no free GPU": (pod(wanted="n7", conditions=[NO_GPU]), "is Pending: Unschedulable: 0/2 nodes", acts.START),
    "no image": (
        pod("n7", initContainerStatuses=[accept(waiting={"reason": "ImagePullBackOff", "message": "Back-off"})]),
        "does not start: container accept: ImagePullBackOff: Back-off",
        acts.CONFIGURE,
    ),
    "evicted": (pod("n7", phase="Failed", conditions=[EVICTED]), "was ended: TerminationByKubelet: The", acts.START),
    "killed for memory": (
        pod("n7", initContainerStatuses=[accept(running=RUNNING) | {"lastState": {"terminated": KILLED}}]),
        "runs and has no report yet: container accept ended with 137, OOMKilled",
        acts.CONFIGURE,
    ),
    "tests": (pod("n7", initContainerStatuses=[accept(running=RUNNING)]), "runs and has no report yet", acts.WAIT),
    "starts": (
        pod("n7", initContainerStatuses=[accept(waiting={"reason": "ContainerCreating"})]), "is Pending", acts.START,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_a_pod_without_a_report_names_its_node_and_the_reason(name: str) -> None:
    item, words, act = STATES[name]
    found = pod_of(item)
    assert (found.node, found.state[: len(words)]) == ("n7", words)
    assert acts.KINDS[found.kind].act.verb == act


@pytest.fixture
def page(tmp_path: Path, api):
    """A collector of three nodes, of which n1 has reported."""
    store = ReportStore(tmp_path / "reports", Expected(3, run_id="1"))
    store.add(source(complete_report("n1", pod=pod("n1")["metadata"]["name"])).report)
    pods = PodList(SELECTOR, client(tmp_path))
    return lambda: look(store, pods)


def test_the_page_names_nodes_that_never_came_and_a_node_that_is_gone(page, api) -> None:
    api.pods = [
        pod("n1", phase="Running"),
        pod(wanted="n2", conditions=[NO_GPU]),
        pod("n3", initContainerStatuses=[accept(running=RUNNING)]),
    ]
    fleet = page()
    assert api.queries[0]["labelSelector"] == SELECTOR and len(api.queries) == 2, "in parts"
    assert fleet.verdict == "INCOMPLETE" and fleet.coverage.missing == ["n2", "n3"]
    found = {finding.node: finding.reason for finding in fleet.findings}
    assert set(found) == {"n2", "n3"}, "one finding per node, and none about an address or a number"
    assert "1 Insufficient nvidia.com/gpu" in found["n2"]
    assert found["n3"].endswith("runs and has no report yet")
    assert ("n2", acts.START) in [(suspect.node, suspect.act) for suspect in fleet.suspects]


def test_pods_that_cannot_be_listed_are_a_finding_and_not_the_end(page, monkeypatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    reasons = [finding.reason for finding in page().findings]
    assert any("the pods cannot be listed" in reason for reason in reasons)
    assert any("1 of 3 expected nodes" in reason for reason in reasons), (
        "what is known without the list stays"
    )
    assert acts.CONFIGURE in {suspect.act for suspect in page().suspects}
