"""A PodGroup on a control plane that has it: pods of a run get nodes together, or none of them
does.

FEATURES=gang switches it on in the local cluster (`make test-gang`).
"""

import json

import pytest

from tests.e2e.test_group_preemption import priority as priority  # a fixture
from tests.helpers.group_pods import each_workload
from tests.helpers.kube import Namespace, racks, wait_until

WAITS = "echo serving; until [ -e /tmp/end ]; do sleep 0.2; done"


@pytest.fixture(autouse=True)
def served(cluster):
    if "podgroups" not in cluster.kubectl(
        "api-resources", "--api-group=scheduling.k8s.io", "--output=name"
    ):
        pytest.skip("this cluster has no PodGroup; run by `make test-gang`")


def gang(name: str, count: int, **more: object) -> tuple[str, ...]:
    """Options of a release whose pods are one gang."""
    spec = {"schedulingPolicy": {"gang": {"minCount": count}}, **more}
    kind = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup"}
    objects = json.dumps([kind | {"metadata": {"name": name}, "spec": spec}])
    member = f"podTemplate.spec.schedulingGroup.podGroupName={name}"
    return "--set-json", f"extraObjects={objects}", "--set", member


def resources(cpus: float) -> dict:
    return {"requests": {"cpu": cpus}}


def group(name: str, *cpus: float) -> str:
    """Values of a group with one rank per number of CPUs."""
    tasks = {
        f"t{index}": {"run": WAITS, "resources": resources(each)} for index, each in enumerate(cpus)
    }
    return json.dumps({"schemaVersion": 1, "name": name, "tasks": tasks})


def cpus_of_a_node(space: Namespace) -> int:
    first = space.cluster.nodes()[0]
    return int(first["status"]["allocatable"]["cpu"])


def placed(space: Namespace, release: str) -> list[str]:
    return [pod["spec"]["nodeName"] for pod in space.pods(release) if pod["spec"].get("nodeName")]


def until_placed(space: Namespace, release: str, count: int):
    wait_until(lambda: len(placed(space, release)) == count, f"{count} of {release} placed", 90)


def end(space: Namespace, release: str):
    for pod in space.pods(release):
        name = pod["metadata"]["name"]
        space.kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=60s")
        space.kubectl("exec", name, "-c", "task", "--", "touch", "/tmp/end")


@each_workload
def test_a_group_that_does_not_fit_holds_nothing_until_all_of_it_fits(namespace, workload):
    """Three ranks of different shapes on two nodes, with room for two of them until another group
    ends.
    """
    size = cpus_of_a_node(namespace)
    big, small = 0.7 * size, 0.4 * size
    settings = ("--set", f"workload={workload}")
    namespace.install(
        "first", "job-group", *settings, *gang("first", 1), values=group("first", big)
    )
    until_placed(namespace, "first", 1)
    second = group("second", big, small, small / 2)
    namespace.install("second", "job-group", *settings, *gang("second", 3), values=second)

    def refused():
        events = [
            event for event in namespace.objects("events") if event["reason"] == "FailedScheduling"
        ]
        names = {pod["metadata"]["name"] for pod in namespace.pods("second")}
        return [event["message"] for event in events if event["involvedObject"]["name"] in names]

    wait_until(
        lambda: len(namespace.pods("second")) == 3 and refused(),
        "the scheduler has tried the second group",
        90,
    )
    assert placed(namespace, "second") == []
    end(namespace, "first")
    until_placed(namespace, "second", 3)


def test_a_run_with_a_priority_is_scheduled(namespace, priority):
    nodes = len(namespace.cluster.schedulable_nodes())
    namespace.install(
        "run",
        "ddp-run",
        *gang("run", nodes, priorityClassName=priority),
        "--set",
        f"program.preset=ddp-tests,nodes={nodes},priorityClassName={priority}",
    )
    until_placed(namespace, "run", nodes)


@pytest.mark.parametrize("workload", ["indexed-job", "jobset", "statefulset"])
def test_a_run_is_one_gang_in_every_workload(namespace, workload):
    """A node too many for the cluster: no pod gets a node. Without it the run completes."""
    nodes = len(namespace.cluster.schedulable_nodes())
    program = ["--set", "program.preset=ddp-tests", "--set", "placement.onePodPerNode=required"]
    for release, count in (("much", nodes + 1), ("run", nodes)):
        namespace.install(release, "ddp-run", *gang(release, count), *program,
                          "--set", f"workload={workload},nodes={count}",
                          "--set-string", "env.OMP_NUM_THREADS=1")  # fmt: skip
    until_placed(namespace, "run", nodes)
    wait_until(lambda: len(namespace.pods("much")) == nodes + 1, "the other run has its pods", 60)
    assert placed(namespace, "much") == []


def test_ranks_of_two_shapes_share_a_rack_or_get_none(namespace):
    """Two racks of one node each: what fits one rack goes there, what needs both gets none."""
    label = f"{namespace.name}/rack"
    near = {"schedulingConstraints": {"topology": [{"key": label}]}}
    with racks(namespace.cluster, label):
        size = cpus_of_a_node(namespace)
        namespace.install(
            "fits",
            "job-group",
            *gang("fits", 2, **near),
            values=group("fits", 0.5 * size, 0.3 * size),
        )
        until_placed(namespace, "fits", 2)
        assert len(set(placed(namespace, "fits"))) == 1
        large = group("large", 0.6 * size, 0.6 * size)
        namespace.install("large", "job-group", *gang("large", 2, **near), values=large)
        wait_until(lambda: len(namespace.pods("large")) == 2, "the large group has its pods", 60)
        with pytest.raises(AssertionError, match="not within"):
            wait_until(
                lambda: placed(namespace, "large"), "a part of the large group has a node", 20
            )
