"""Preemption of a rank: its pod is replaced under the same name (row 6.2 of the plan, and more
cases).
"""

import json
import uuid
from collections.abc import Iterator

import pytest

from tests.helpers.group_pods import (
    each_workload,
    execute,
    launch,
    rank,
    wait_for_output,
)
from tests.helpers.kube import Namespace, phases, start_pod, wait_until

GROUP = """\
---
name: two
execution: parallel
---
name: server
resources: {cpus: 1}
%s
run: |
  trap 'echo "caught SIGTERM"; exit 0' TERM
  echo "serving"
  until [ -e /tmp/end ]; do sleep 0.2; done
---
name: client
run: |
  echo "connected"
  until [ -e /tmp/end ]; do sleep 0.2; done
"""


def start(space: Namespace, *settings: str, more: str = "") -> dict[str, dict]:
    """Start two ranks that run until they are stopped; returns their pods."""
    launch(space, GROUP % more, *settings)
    wait_for_output(space, "server-0", "serving")
    wait_for_output(space, "client-0", "connected")
    return {host: rank(space, host) for host in ("server-0", "client-0")}


def comes_back(space: Namespace, before: dict[str, dict], deadline_s: float = 120):
    """The server runs again in another pod, its peer resolves it by name and keeps its own pod, and
    all succeed.
    """

    def another():
        pod = rank(space, "server-0")
        return bool(pod) and pod["metadata"]["uid"] != before["server-0"]["metadata"]["uid"]

    wait_until(another, "another pod for server-0", deadline_s)
    wait_for_output(space, "server-0", "serving", deadline_s)
    address = rank(space, "server-0")["status"]["podIP"]
    wait_until(
        lambda: address in execute(space, "client-0", "sh", "-c", "getent ahostsv4 server-0.two || true"),
        "client-0 resolves server-0.two to the new pod", 30,
    )  # fmt: skip
    client = rank(space, "client-0")
    assert client["metadata"]["uid"] == before["client-0"]["metadata"]["uid"]
    jobsets = space.objects("jobset")
    assert all(jobset["status"].get("restarts", 0) == 0 for jobset in jobsets), (
        "it does not count as an error"
    )
    for host in before:
        execute(space, host, "touch", "/tmp/end")
    wait_until(
        lambda: [phases(space.pods("grp")).get(host) for host in before] == ["Succeeded"] * 2,
        "both succeed",
        60,
    )


def delete(space: Namespace, pod: dict):
    space.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")


def evict(space: Namespace, pod: dict):
    name = pod["metadata"]["name"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": space.name},
    }
    path = f"/api/v1/namespaces/{space.name}/pods/{name}/eviction"
    space.cluster.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(body))


@pytest.mark.row("6.2", "Preemption")
@each_workload
@pytest.mark.parametrize("take_away", [delete, evict])
def test_a_pod_that_is_taken_away(namespace, take_away, workload):
    """Pod deleted, evicted, drained, pushed out by a higher priority, or lost with its node: the
    rank comes back under its name in about 12 s, its peers go on and reach it again, and no restart
    is counted. User code gets SIGTERM.
    """
    before = start(namespace, "--set", f"workload={workload}")
    take_away(namespace, before["server-0"])
    comes_back(namespace, before)


@pytest.fixture
def priority(namespace) -> Iterator[str]:
    name = f"high-{uuid.uuid4().hex[:8]}"
    namespace.cluster.kubectl("create", "priorityclass", name, "--value=1000")
    yield name
    namespace.cluster.kubectl("delete", "priorityclass", name)


@pytest.fixture
def scarce(namespace) -> Iterator[str]:
    """A resource of which one node has two."""
    resource, node = f"example.com/{namespace.name}", namespace.cluster.schedulable_nodes()[0]

    def patch(operation):
        path = f"/status/capacity/{resource.replace('/', '~1')}"
        change = json.dumps([{**operation, "path": path}])
        namespace.cluster.kubectl(
            "patch", "node", node, "--subresource=status", "--type=json", "-p", change
        )

    patch({"op": "add", "value": "2"})
    yield resource
    patch({"op": "remove"})


@pytest.mark.row("6.2", "Preemption")
def test_pushed_out_by_a_higher_priority(namespace, priority, scarce):
    """The pod waits until the node has room again."""
    limits = {"resources": {"limits": {scarce: "2"}}}
    pod_config = {"kubernetes": {"pod_config": {"spec": {"containers": [limits]}}}}
    before = start(namespace, more=f"config: {json.dumps(pod_config)}")
    start_pod(namespace, "strong", ["sleep", "600"], limits, priorityClassName=priority)
    namespace.kubectl("wait", "pod/strong", "--for=condition=Ready", "--timeout=90s")
    namespace.kubectl("delete", "pod", "strong", "--grace-period=1")
    comes_back(namespace, before)
