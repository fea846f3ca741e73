"""A patrol of idle nodes in the way of jobs: 20 arrive at once, and none waits longer for its node
than the patrol's grace period.

Other tests must not run at the same time: they would take the nodes' CPUs.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Iterator

import pytest

from gpuworker.fleet.marks import RECENT, STATE
from tests.e2e.test_gpu_accept import NODES, QUICKLY
from tests.e2e.test_gpu_accept_life import init_state
from tests.helpers.kube import Cluster, Namespace, wait_until

pytestmark = pytest.mark.matrix
JOBS, NODE_CPUS, PATROL_CPUS = 20, 64, 60
GRACE_S = 5  # of a pod of the patrol
SLACK_S = 10  # for scheduler and kubelets of a busy machine
LONG = ("--set", "level=burn-in,burnInSeconds=600,checkTimeoutSeconds=900")


def job(number: int, cpus: int) -> dict:
    context = {"runAsNonRoot": True, "runAsUser": 65532}
    locked = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "main", "image": os.environ["SHELL_IMAGE"], "command": ["sleep", "600"]}
    container |= {"securityContext": locked, "resources": {"requests": {"cpu": cpus}}}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    spec |= {"securityContext": context | {"seccompProfile": {"type": "RuntimeDefault"}}}
    template = {
        "metadata": {"labels": {"arrives": "now"}},
        "spec": spec | {"containers": [container]},
    }
    meta = {"name": f"job-{number}"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {"template": template},
    }


def waits_for_nodes(space: Namespace) -> list[float]:
    """Let all jobs arrive; seconds from each pod's creation until it has a node."""
    per_node = math.ceil(JOBS / len(space.cluster.schedulable_nodes()))
    items = [job(number, PATROL_CPUS // per_node) for number in range(JOBS)]
    jobs = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    threading.Timer(1, space.kubectl, ["apply", "-f", "-"], {"input": jobs}).start()
    made: dict[str, float] = {}
    placed: dict[str, float] = {}
    for pod in space.watch("pods", 120):
        if pod["metadata"]["labels"].get("arrives"):
            name, now = pod["metadata"]["name"], time.monotonic()
            made.setdefault(name, now)
            if pod["spec"].get("nodeName"):
                placed.setdefault(name, now - made[name])
        if len(placed) == JOBS:
            break
    space.kubectl("delete", "jobs", *(each["metadata"]["name"] for each in items))
    wait_until(lambda: not space.objects("pods", "arrives=now"), "the jobs are gone", 120)
    assert len(placed) == JOBS, placed
    return sorted(placed.values())


@pytest.fixture
def lowest(namespace: Namespace) -> Iterator[str]:
    space, name = namespace, f"patrol-{namespace.name}"
    space.kubectl("create", "priorityclass", name, "--value=-1000", "--preemption-policy=Never")
    yield name
    space.kubectl("delete", "priorityclass", name)


def patrol(space: Namespace, lowest: str, *settings: str) -> None:
    """Its schedule never comes: a test starts its Jobs."""
    count = len(space.cluster.schedulable_nodes())
    values = f"device=cpu,workload=job,nodes={count},priorityClassName={lowest}"
    schedule = "patrol.schedule=0 0 1 1 *"
    space.install("patrol", "gpu-accept", "--set", values, "--set", schedule, *settings)


def test_the_longest_untested_node_comes_first(namespace: Namespace, lowest: str) -> None:
    space, cluster = namespace, namespace.cluster
    nodes, order = cluster.schedulable_nodes(), []
    patrol(space, lowest, "--set", "patrol.percent=1,nodeActions=record", *QUICKLY)
    try:
        for turn in range(2 * len(nodes)):
            space.kubectl("create", "job", f"turn-{turn}", "--from=cronjob/patrol-gpu-accept")
            space.kubectl("wait", "--for=condition=Complete", f"job/turn-{turn}", "--timeout=180s")
            (pod,) = space.objects("pods", f"job-name=turn-{turn}")
            order.append(pod["spec"]["nodeName"])
            wait_until(lambda: newest(cluster) == order[-1], "its label says so", 60)
    finally:
        for node in nodes:
            cluster.kubectl("annotate", "node", node, f"{STATE}-")
            cluster.kubectl("label", "node", node, f"{RECENT}-")
    assert sorted(order[: len(nodes)]) == nodes and order[len(nodes) :] == order[: len(nodes)]


def newest(cluster: Cluster) -> str:
    """The node that was tested last, by the labels."""
    items = json.loads(cluster.kubectl("get", "nodes", "-o", "json", "-l", RECENT))["items"]
    fifths = {each["metadata"]["name"]: each["metadata"]["labels"][RECENT] for each in items}
    return max(fifths, key=fifths.get, default="")


def test_no_job_waits_longer_than_the_grace_of_a_patrol(namespace: Namespace, lowest: str) -> None:
    space, count = namespace, len(namespace.cluster.schedulable_nodes())
    alone = waits_for_nodes(space)
    idle = f"patrol.percent=100,resources.requests.cpu={PATROL_CPUS}"
    patrol(space, lowest, "--set", idle, *LONG)
    space.kubectl("create", "job", "now", "--from=cronjob/patrol-gpu-accept")

    def tests() -> set[str]:
        """Nodes that a patrol tests now."""
        pods = [
            pod
            for pod in space.objects("pods", NODES)
            if pod["status"].get("initContainerStatuses")
        ]
        return {pod["spec"]["nodeName"] for pod in pods if "running" in init_state(pod)}

    wait_until(lambda: len(tests()) == count, "each node is tested", 180)
    met = waits_for_nodes(space)
    delays = [after - before for before, after in zip(alone, met, strict=True)]
    print(f"without a patrol {alone}, with one {met}: at most {max(delays):.2f} s later")
    assert max(delays) <= GRACE_S + SLACK_S, (alone, met)
    wait_until(lambda: len(tests()) == count, "the patrol goes on when the jobs have gone", 180)
