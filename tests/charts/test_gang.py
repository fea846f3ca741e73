"""placement.gang: one PodGroup of Kubernetes 1.37 for all pods of a run, whatever objects create them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from hack.deps import kubernetes_schemas
from tests.charts.test_charts_kubernetes_schemas import kubeconform
from tests.helpers.rendering import HELMS, REPO, objects, template

GANG = ("--set", "placement.gang=native")
SERVED = ("--api-versions", "scheduling.k8s.io/v1beta1/PodGroup")
NEWEST = "1.37.2"
WAYS = [("ddp-run", "indexed-job"), ("ddp-run", "jobset"), ("ddp-run", "statefulset"), ("job-group", "jobset"),
        ("job-group", "jobs")]  # fmt: skip
# Its pod is not of the gang. A StatefulSet has no bare torchrun.
ETCD = ("--set", "launcher=torchrun,rendezvous.backend=etcd,rendezvous.etcd.deploy=true")


def render(chart: str, way: str, *options: str, helm: str = "helm") -> subprocess.CompletedProcess:
    if chart == "ddp-run":
        etcd = () if way == "statefulset" else ETCD
        values, choice = b"{nodes: 3, program: {args: [train.py]}}", ("--set", f"workload={way}", *etcd)
    else:
        values, choice = (REPO / "charts/job-group/ci/jobset-values.yaml").read_bytes(), ("--set", f"layout={way}")
    return template(helm, chart, values, *choice, *options)


def pods(item: dict) -> Iterator[tuple[dict, int]]:
    """Pod templates of an object, each with the number of its pods."""
    spec = item.get("spec", {})
    if item["kind"] == "JobSet":
        for each in spec["replicatedJobs"]:
            yield from pods({"kind": "Job", "spec": each["template"]["spec"]})
    elif item["kind"] in ("Job", "StatefulSet", "Deployment"):
        yield spec["template"]["spec"], spec.get("completions") or spec.get("replicas") or 1


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize(("chart", "way"), WAYS)
def test_all_pods_of_a_run_and_no_other_are_the_gang(chart: str, way: str, helm: str) -> None:
    done = render(chart, way, *GANG, *SERVED, "--set", "placement.topologyKey=example.com/rack", helm=helm)
    assert done.returncode == 0, done.stderr.decode()
    items = objects(done.stdout.decode())
    (gang,) = [item for item in items if item["kind"] == "PodGroup"]
    assert gang["spec"]["schedulingConstraints"] == {"topology": [{"key": "example.com/rack"}]}
    members = [(pod, count) for item in items for pod, count in pods(item) if "schedulingGroup" in pod]
    assert {pod["schedulingGroup"]["podGroupName"] for pod, _ in members} == {gang["metadata"]["name"]}
    assert sum(count for _, count in members) == gang["spec"]["schedulingPolicy"]["gang"]["minCount"] > 1
    assert not any("podAffinity" in pod.get("affinity", {}) for pod, _ in members)
    others = [item for item in items for pod, _ in pods(item) if "schedulingGroup" not in pod]
    assert [item["kind"] for item in others] == (
        ["Deployment"] if way in ("indexed-job", "jobset") and chart == "ddp-run" else []
    )
    native = [item for item in items if item["kind"] != "JobSet"]
    assert kubeconform(kubernetes_schemas.location(NEWEST), native)["valid"] == len(native)


@pytest.mark.parametrize(("chart", "way"), WAYS)
def test_a_gang_is_refused_beside_kueue_and_where_kubernetes_has_none(chart: str, way: str) -> None:
    for options in ((), (*SERVED, "--set", "kueue.queueName=team-a")):
        done = render(chart, way, *GANG, *options)
        assert done.returncode != 0 and b"placement.gang" in done.stderr


def task(field: str, value: object, name: str) -> tuple[str, str]:
    return "--set-json", f"tasks.{name}.podTemplate.spec.{field}={json.dumps(value)}"


@pytest.mark.parametrize(("chart", "way"), WAYS)
def test_a_gang_has_the_priority_of_its_pods(chart: str, way: str) -> None:
    """Kubernetes schedules no pod of a gang whose priority is another one."""
    names = yaml.safe_load((REPO / "charts/job-group/ci/jobset-values.yaml").read_text())["tasks"]
    each = [word for name in names for word in task("priorityClassName", "high", name)]
    options = each if chart == "job-group" else ("--set", "priorityClassName=high")
    items = objects(render(chart, way, *GANG, *SERVED, *options).stdout.decode())
    (gang,) = [item for item in items if item["kind"] == "PodGroup"]
    assert gang["spec"]["priorityClassName"] == "high"
    members = [pod for item in items for pod, _ in pods(item) if "schedulingGroup" in pod]
    assert {pod["priorityClassName"] for pod in members} == {"high"}


@pytest.mark.parametrize("layout", ["jobset", "jobs"])
@pytest.mark.parametrize(
    ("field", "value"),
    [("priorityClassName", "high"), ("schedulerName", "other"), ("schedulingGroup", {"podGroupName": "other"})],
)
def test_a_gang_whose_pods_would_never_be_scheduled_is_refused(layout: str, field: str, value: object) -> None:
    (first, *_) = yaml.safe_load((REPO / "charts/job-group/ci/jobset-values.yaml").read_text())["tasks"]
    done = render("job-group", layout, *GANG, *SERVED, *task(field, value, first))
    assert done.returncode != 0 and b"placement.gang" in done.stderr and field.encode() in done.stderr


@pytest.mark.parametrize(("chart", "way"), WAYS)
def test_without_a_gang_no_object_is_new(chart: str, way: str) -> None:
    text = json.dumps(objects(render(chart, way, *SERVED).stdout.decode()))
    assert "PodGroup" not in text and "schedulingGroup" not in text
