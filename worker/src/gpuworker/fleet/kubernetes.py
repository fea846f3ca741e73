"""Kubernetes: a client of its API with the rights of the page's service account, and the pods that
test a node, by which nodes without a report have names and reasons.

The chart's values fleet.listPods and nodeActions permit it: the service account may then list the
pods of its namespace.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 10
PER_REQUEST = 100  # a pod or a node has some 10 KB
PROBLEMS = (
    OSError,
    http.client.HTTPException,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
)  # of a request, and of an answer that is not as documented
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


class KubeApi:
    """Reads the files of the account for each request: Kubernetes renews the token."""

    def __init__(self, account: Path = ACCOUNT) -> None:
        self.account = account

    def namespace(self) -> str:
        return (self.account / "namespace").read_text().strip()

    def ask(self, path: str, patch: dict | None = None) -> dict:
        """What is at a path, or what became of it by a strategic merge patch."""
        host, port = (os.environ[f"KUBERNETES_SERVICE_{name}"] for name in ("HOST", "PORT"))
        host = f"[{host}]" if ":" in host else host
        context = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        # Python 3.13 also demands extensions that authorities of clusters lack, and that kubectl
        # does not ask for.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        token = (self.account / "token").read_text().strip()
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/strategic-merge-patch+json",
        }
        data, method = (json.dumps(patch).encode(), "PATCH") if patch else (None, "GET")
        url = f"https://{host}:{port}{path}"
        request = urllib.request.Request(url, data, headers, method=method)
        with opener.open(request, timeout=TIMEOUT_S) as response:
            return json.load(response)

    def items(self, path: str, **query: str) -> Iterator[dict]:
        """All objects of a list, which comes in parts."""
        query["limit"] = str(PER_REQUEST)
        while True:
            found = self.ask(f"{path}?{urllib.parse.urlencode(query)}")
            yield from found["items"]
            if not (more := found["metadata"].get("continue")):
                return
            query["continue"] = more


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
