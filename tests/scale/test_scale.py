"""Large groups: time until every pod has a node, names in DNS, sizes of objects; compared with bare
pods.

Run by `make scale`. Each test prints its figures.
"""

import json
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.test_kueue import QUEUES
from tests.helpers.kube import REPO, Namespace, run, start_pod, wait_until
from tests.helpers.processes import ran
from tests.helpers.rendering import objects, pod_templates

ON_FAKE_NODES = {"nodeSelector": {"type": "kwok"}, "tolerations": [{"operator": "Exists"}]}


@pytest.fixture
def space(cluster) -> Iterator[Namespace]:
    name = f"scale-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    yield Namespace(cluster, name)
    # A namespace deletes its pods first. Simulated pods never end, so a Job would keep them for its
    # counts.
    cluster.kubectl("-n", name, "delete", "jobsets,jobs", "--all", "--timeout=300s")
    cluster.kubectl("delete", "namespace", name, "--timeout=300s")


def values(ranks: int, gpus: int = 8, **more: object) -> dict:
    task = {"numNodes": ranks, "run": "python3 train.py", "resources": {"requests": {"cpu": "1"}}}
    if gpus:
        task["accelerator"] = {"types": ["H100"], "count": gpus}
    return {"schemaVersion": 1, "name": "big", "tasks": {"t": task}, **ON_FAKE_NODES, **more}


def bound(space: Namespace) -> tuple[int, int]:
    """Number of pods, and number of pods with a node."""
    nodes = r"jsonpath={range .items[*]}{.spec.nodeName}{'\n'}{end}"
    lines = space.kubectl("get", "pods", "-o", nodes, "--chunk-size=0").split("\n")[:-1]
    return len(lines), sum(bool(line) for line in lines)


def until_bound(space: Namespace, ranks: int, deadline_s: float = 300):
    end = time.monotonic() + deadline_s
    while (state := bound(space)) != (ranks, ranks):
        assert time.monotonic() < end, (
            f"{state} of {ranks} pods (created, with a node) after {deadline_s:g} s"
        )
        time.sleep(0.25)  # each call runs kubectl


def install(space: Namespace, given: dict) -> float:
    """Seconds from `helm install` until every pod has a node."""
    start = time.monotonic()
    space.install("grp", "job-group", values=json.dumps(given))
    until_bound(space, sum(task["numNodes"] for task in given["tasks"].values()))
    return time.monotonic() - start


def bare_pods(space: Namespace, given: dict) -> float:
    """Seconds for the same pods without Job, JobSet and Helm: `kubectl create` of a list."""
    chart = str(REPO / "charts/job-group")
    command = ["helm", "template", "grp", chart, "--namespace", space.name]
    command += [*space.cluster.helm_image(), "-f", "-"]
    items = objects(run(*command, input=json.dumps(given)))
    pod = {"apiVersion": "v1", "kind": "Pod"}
    pods = [
        each | pod | {"metadata": {**each["metadata"], "name": f"bare-{number}"}}
        for number, each in enumerate(pod_templates(items))
    ]
    manifests = [item for item in items if item["kind"] in ("ConfigMap", "Service")] + pods
    text = "\n---\n".join(json.dumps(item) for item in manifests)
    start = time.monotonic()
    space.kubectl("create", "-f", "-", input=text)
    until_bound(space, len(pods))
    return time.monotonic() - start


def resolves_all(space: Namespace, names: list[str]):
    """Resolve every name of the group in a pod on a real node."""
    script = "import socket, sys\nfor name in sys.stdin.read().split(): socket.getaddrinfo(name, None)\nprint('ok')"
    start_pod(space, "resolver", ["sleep", "600"])
    space.kubectl("wait", "pod/resolver", "--for=condition=Ready", "--timeout=60s")

    def all_resolve():
        resolver = ("kubectl", "-n", space.name, "exec", "-i", "resolver")
        done = ran(*resolver, "--", "python3", "-c", script, input=" ".join(names), timeout=120)
        return done.stdout.strip() == "ok"

    wait_until(all_resolve, f"{len(names)} names in DNS", 120)
    space.kubectl("delete", "pod", "resolver", "--grace-period=1")


@pytest.mark.parametrize(("workload", "ranks"), [("jobset", 64), ("jobs", 256), ("jobs", 1000)])
def test_time_until_every_pod_has_a_node(space, workload, ranks):
    """Compared with bare pods, alternating; the goal is at most 1.15 times their time."""
    given = values(ranks, gpus=8 if ranks <= 64 else 0, workload=workload)
    ours, bare = [], []
    for _ in range(2 if ranks <= 256 else 1):
        ours.append(install(space, given))
        if workload == "jobset":
            size = len(json.dumps(space.objects("jobset")[0]))
            print(f"\nJobSet of {ranks} ranks: {size / 1000:.0f} KB as JSON")
        resolves_all(space, [f"t-{rank}.big" for rank in range(ranks)])
        space.helm("uninstall", "grp")
        wait_until(lambda: bound(space)[0] == 0, "the group is deleted", 300)
        bare.append(bare_pods(space, given))
        space.kubectl(
            "delete", "pods,configmaps,services", "--all", "--wait=false", "--grace-period=1"
        )
        wait_until(lambda: bound(space)[0] == 0, "the bare pods are deleted", 300)
    ratio = min(ours) / min(bare)
    print(
        f"\n{ranks} ranks, workload {workload}: {min(ours):.1f} s; bare pods {min(bare):.1f} s; ratio {ratio:.2f}"
    )
    assert min(ours) < 10 * min(bare), "more than ten times as long"


def test_a_kueue_pod_group_of_256(space):
    """Past 18 ranks a JobSet does not fit into a Kueue Workload; the pods of plain Jobs form one
    pod group.
    """
    space.apply(QUEUES.format(name=space.name, namespace=space.name, quota=1000))
    try:
        seconds = install(space, values(256, gpus=0, workload="jobs", kueue={"queueName": "queue"}))
        print(f"\n256 ranks as a Kueue pod group: {seconds:.1f} s until every pod has a node")
        assert len(space.objects("workloads.kueue.x-k8s.io")) == 1
    finally:
        space.helm("uninstall", "grp")
        # Kueue releases pods that have ended; pods of simulated nodes never end.
        space.kubectl("delete", "workloads.kueue.x-k8s.io", "--all", "--wait=false")
        wait_until(lambda: bound(space)[0] == 0, "the group is deleted", 300)
        for kind in ("clusterqueue", "resourceflavor"):
            space.kubectl("delete", kind, space.name, "--wait=false")


def test_a_hundred_groups_in_one_namespace(space):
    """Group names that are prefixes of each other, with equal tasks: each name resolves to the
    group's own pods.
    """
    groups = [f"g-{number}" for number in range(100)]

    def start(group):
        given = {**values(2, gpus=0), "name": group}
        space.install(group, "job-group", values=json.dumps(given))

    begin = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(start, groups))
    until_bound(space, 200)
    print(f"\n100 groups of 2 ranks: {time.monotonic() - begin:.1f} s until every pod has a node")
    resolves_all(space, [f"t-{rank}.{group}" for group in groups for rank in (0, 1)])
    for group in groups[:3]:
        slices = space.objects("endpointslices", f"kubernetes.io/service-name={group}")
        pods = {pod["status"]["podIP"] for pod in space.objects("pods", f"job-group/name={group}")}
        endpoints = [endpoint for part in slices for endpoint in part["endpoints"]]
        assert {address for each in endpoints for address in each["addresses"]} == pods
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda group: space.helm("uninstall", group), groups))
