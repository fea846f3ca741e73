"""Pods that test a node, as Kubernetes lists them: the nodes without a report, by name, and why
they have none.

The chart's values fleet.listPods and nodeActions permit it: the page's service account may then
list the pods of its namespace.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import NamedTuple

from gpuworker.fleet.kube_api import PROBLEMS, KubeApi

PERIOD_S = 15
STARTING = ("PodInitializing", "ContainerCreating")
IMAGE = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
)
MOST_WORDS = 300


class ListedPod(NamedTuple):
    """`node`: where it runs or is meant to run, "" if no node is chosen. `state`: why it has no
    report yet. `addresses`: none before it runs.
    """

    name: str
    node: str
    ended: bool
    kind: str  # of the finding that it has no report
    state: str
    addresses: frozenset[str] = frozenset()


class PodList:
    """Lists the pods with a label selector, at most once in PERIOD_S."""

    def __init__(self, selector: str, api: KubeApi) -> None:
        self.selector, self.api = selector, api
        self.listed: list[ListedPod] = []
        self.problem = ""  # why the last request failed
        self.at = -float(PERIOD_S)

    def refresh(self) -> None:
        if time.monotonic() - self.at < PERIOD_S:
            return
        try:
            path = f"/api/v1/namespaces/{self.api.namespace()}/pods"
            items = self.api.items(path, labelSelector=self.selector)
            self.listed, self.problem = [pod_of(item) for item in items], ""
        except PROBLEMS as error:
            words = f"the pods cannot be listed: {type(error).__name__}: {error}"
            self.listed, self.problem = [], words
        self.at = time.monotonic()

    def without_report(
        self, pods: Collection[str], nodes: Collection[str]
    ) -> dict[str, tuple[str, str, str]]:
        """Pod -> its node, the kind of the finding and its state, of pods whose report did not
        arrive.

        `pods` and `nodes`: those that have reported. The key "" stands for all pods.
        """
        found = {"": ("", "pods-not-listed", self.problem)} if self.problem else {}
        for pod in self.listed:
            if pod.name not in pods and not (pod.ended and pod.node in nodes):
                found[pod.name] = pod.node, pod.kind, pod.state
        return found


def pod_of(item: dict) -> ListedPod:
    status = item.get("status", {})
    phase = status.get("phase", "")
    node = item["spec"].get("nodeName") or _wanted_node(item["spec"])
    ended = phase in ("Succeeded", "Failed")
    kind, state = _state(item)
    addresses = frozenset(each["ip"] for each in status.get("podIPs") or ())
    return ListedPod(item["metadata"]["name"], node, ended, kind, state[:MOST_WORDS], addresses)


def _state(item: dict) -> tuple[str, str]:
    """Kind and words."""
    status = item.get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    scheduled, ended = conditions.get("PodScheduled", {}), conditions.get("DisruptionTarget", {})
    if ended.get("status") == "True":
        return "no-report", f"was ended: {_words(ended)}"
    if status.get("reason"):
        return "no-report", f"was ended: {_words(status)}"
    if scheduled.get("status") == "False":
        return "no-report", f"is Pending: {_words(scheduled)}"
    kind, restarts, running = "no-report", "", False
    for container in [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]:
        waiting = container.get("state", {}).get("waiting", {})
        if waiting and waiting.get("reason") not in STARTING:
            kind = "image" if waiting.get("reason") in IMAGE else kind
            return kind, f"does not start: container {container['name']}: {_words(waiting)}"
        before = (
            container.get("lastState", {}).get("terminated")
            or container.get("state", {}).get("terminated")
            or {}
        )
        if before.get("exitCode"):
            kind = "out-of-memory" if before.get("reason") == "OOMKilled" else kind
            restarts = (
                f": container {container['name']} ended with {before['exitCode']}, {_words(before)}"
            )
        running = running or "running" in container.get("state", {})
    if item["metadata"].get("deletionTimestamp"):
        return kind, "is being deleted"
    if running:
        return "testing" if kind == "no-report" else kind, f"runs and has no report yet{restarts}"
    return kind, f"is {status.get('phase', 'unknown')}{restarts}"


def _words(of: dict) -> str:
    return (
        ": ".join(text for text in (of.get("reason"), of.get("message")) if text)
        or "no reason given"
    )


def _wanted_node(spec: dict) -> str:
    """The node for which the controller of a DaemonSet made the pod."""
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    terms = required.get("nodeSelectorTerms") or ()
    names = {
        field["values"][0]
        for term in terms
        for field in term.get("matchFields") or ()
        if field["values"]
    }
    return names.pop() if len(names) == 1 else ""
