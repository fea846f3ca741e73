"""Admission by Kueue: the whole group or nothing."""

import json
import uuid
from collections.abc import Iterator

import pytest

from tests.helpers.group_pods import all_succeed, end, execute, exit_code, launch, output, rank
from tests.helpers.kube import Namespace, phases, racks, wait_until

QUEUES = """\
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {{name: {name}}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {{name: {name}}}
spec:
  namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}
  resourceGroups:
    - coveredResources: [cpu]
      flavors:
        - name: {name}
          resources: [{{name: cpu, nominalQuota: {quota}}}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {{name: queue, namespace: {namespace}}}
spec: {{clusterQueue: {name}}}
"""

GROUP = """\
---
name: queued
execution: parallel
---
name: a
resources: {cpus: 1}
run: echo done
---
name: b
num_nodes: 2
resources: {cpus: 1}
run: echo done
"""


def quota(cpus: int):
    return pytest.mark.parametrize("queue", [cpus], indirect=True)


@pytest.fixture
def queue(namespace, request) -> Iterator[Namespace]:
    """A LocalQueue `queue` whose ClusterQueue has the CPUs that the test requests."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    namespace.apply(QUEUES.format(name=name, namespace=namespace.name, quota=request.param))
    yield namespace
    for kind in ("clusterqueue", "resourceflavor"):
        namespace.kubectl("delete", kind, name, "--wait=false")


HOSTS = ("a-0", "b-0", "b-1")
QUEUED = ("--set", "kueue.queueName=queue")
JOBS = (*QUEUED, "--set", "workload=jobs")


def reservation(space: Namespace) -> dict | None:
    """The QuotaReserved condition of the group's Workload."""
    for workload in space.objects("workloads.kueue.x-k8s.io"):
        for condition in workload.get("status", {}).get("conditions", []):
            if condition["type"] == "QuotaReserved":
                return condition
    return None


@pytest.mark.row("5.2", "Resource Unavailable")
@quota(100)
def test_an_impossible_job_creates_no_pod(queue):
    launch(queue, "k8s_resource_unavailable.yaml", *QUEUED)
    condition = wait_until(lambda: reservation(queue), "Kueue has decided about the group", 60)
    assert condition["status"] == "False" and "impossible-job-0" in condition["message"], condition
    assert queue.objects("pods") == []


@quota(3)
def test_workload_jobs_replaces_a_pod_that_is_taken_away(queue):
    launch(
        queue,
        GROUP.replace("run: echo done", "run: until [ -e /tmp/end ]; do sleep 0.2; done"),
        *JOBS,
    )
    wait_until(
        lambda: (
            set(phases(queue.pods("grp")).values()) == {"Running"}
            and "starts attempt" in output(queue, "a-0")
        ),
        "all run",
    )
    old = rank(queue, "a-0")
    queue.kubectl("delete", "pod", old["metadata"]["name"], "--wait=false")

    def back():
        pod = rank(queue, "a-0")
        return (
            bool(pod)
            and pod["metadata"]["uid"] != old["metadata"]["uid"]
            and "starts attempt" in output(queue, "a-0")
        )

    wait_until(back, "a-0 runs again", 90)
    for host in HOSTS:
        execute(queue, host, "touch", "/tmp/end")
    wait_until(lambda: set(phases(queue.pods("grp")).values()) == {"Succeeded"}, "all succeed", 60)


TOPOLOGY = """\
apiVersion: kueue.x-k8s.io/v1beta2
kind: Topology
metadata: {{name: {name}}}
spec: {{levels: [{{nodeLabel: {label}}}]}}
---
"""


def queue_by_topology(space: Namespace, name: str, label: str):
    """A LocalQueue with a topology in which the nodes with each value of the label are a domain."""
    objects = (TOPOLOGY + QUEUES).format(name=name, label=label, namespace=space.name, quota=1000)
    flavor = f"kind: ResourceFlavor\nmetadata: {{name: {name}}}\n"
    assert flavor in objects
    by_topology = (
        f"{flavor}spec: {{topologyName: {name}, nodeLabels: {{kubernetes.io/os: linux}}}}\n"
    )
    space.apply(objects.replace(flavor, by_topology))


@pytest.fixture
def topology(namespace) -> Iterator[str]:
    """Label by which each node is a domain of its own."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    with racks(namespace.cluster, label := f"{name}/rack"):
        queue_by_topology(namespace, name, label)
        yield label
        for kind in ("clusterqueue", "resourceflavor", "topologies.kueue.x-k8s.io"):
            namespace.kubectl("delete", kind, name, "--wait=false")


@pytest.mark.parametrize("cpus", [1, 30])
def test_a_topology_is_kept(namespace, topology, cpus):
    """Three ranks fit into one rack or none starts, although two racks together would have the
    room.
    """
    settings = (*JOBS, "--set", f"kueue.requiredTopology={topology}")
    launch(namespace, GROUP.replace("cpus: 1", f"cpus: {cpus}"), *settings)
    if cpus == 1:
        pods = all_succeed(namespace, *HOSTS)
        assert len({pod["spec"]["nodeName"] for pod in pods.values()}) == 1
    else:
        condition = wait_until(
            lambda: reservation(namespace), "Kueue has decided about the group", 60
        )
        assert condition["status"] == "False" and "topology" in condition["message"], condition
        assert not any("nodeName" in pod["spec"] for pod in namespace.pods("grp"))


@quota(2)
def test_a_group_starts_as_a_whole_when_there_is_room(queue):
    """Two of its three ranks would fit before; none may exist."""
    launch(queue, GROUP, *QUEUED)
    wait_until(lambda: (reservation(queue) or {}).get("status") == "False", "the group waits", 60)
    assert queue.objects("pods") == [] and queue.objects("jobset")[0]["spec"]["suspend"] is True
    name = queue.objects("localqueue")[0]["spec"]["clusterQueue"]
    quota = '[{"op": "replace", "path": "/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota", "value": "3"}]'
    queue.kubectl("patch", "clusterqueue", name, "--type=json", "-p", quota)
    all_succeed(queue, *HOSTS)


@quota(2)
def test_workload_jobs_is_held_as_one_pod_group(queue):
    """Without JobSet the pods exist, but Kueue's gate keeps each of them off the nodes."""
    launch(queue, GROUP, *JOBS)
    wait_until(
        lambda: (reservation(queue) or {}).get("status") == "False", "Kueue holds the group", 60
    )
    pods = queue.pods("grp")
    assert len(pods) == 3
    for pod in pods:
        assert "kueue.x-k8s.io/admission" in [
            gate["name"] for gate in pod["spec"]["schedulingGates"]
        ]
        assert "nodeName" not in pod["spec"]
    # Cancelled while it waits: Kueue must not keep the pods for replacements that never come.
    queue.helm("uninstall", "grp")
    wait_until(
        lambda: not queue.objects("pods") and not queue.objects("jobs"),
        "the cancelled group is gone",
        90,
    )


@quota(2)
def test_workload_jobs_does_not_run_in_part_where_a_queue_is_the_default(queue):
    """Kueue then admits the Jobs one by one, and holds no pod: there is room for two of three
    ranks.
    """
    (local,) = queue.objects("localqueue")
    default = {
        "apiVersion": local["apiVersion"],
        "kind": "LocalQueue",
        "metadata": {"name": "default"},
    }
    queue.apply(json.dumps({**default, "spec": local["spec"]}))
    # Until Kueue knows the queue, it holds the pods as one group, and none of them would end.
    queue.kubectl("wait", "localqueue/default", "--for=condition=Active", "--timeout=60s")
    launch(queue, GROUP.replace("echo done", "echo USER CODE"), *JOBS)
    pods = queue.wait_for_end("grp", ranks=3)
    assert {exit_code(pod) for pod in pods} == {2}
    for host in HOSTS:
        message = end(rank(queue, host))["message"]
        assert (
            "USER CODE" not in output(queue, host) and f"[FATAL] node={host} exit_code=2" in message
        )
