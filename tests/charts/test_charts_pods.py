"""What pods of every chart have beside the program: claims, shared memory, limits of every container, and their end."""

from __future__ import annotations

import pytest

from tests.charts.test_charts_refuse import only, refusal, render, task
from tests.helpers.rendering import CHARTS

CLAIMS = {
    "ddp-run": {"volumes": {"datasets": {"claimName": "c"}, "models": {"claimName": "m"}}},
    "gpu-accept": {"volumes": {"datasets": {"claimName": "c"}}},
    "job-group": task(volumes=[{"mountPath": "/data", "claimName": "c", "readOnly": True}]),
}
ACCEPTANCE = {"workload": "job", "nodes": 2}
ENDING = {
    "Job of ddp-run": ("ddp-run", {}, "Job"),
    "JobSet of ddp-run": ("ddp-run", {"workload": "jobset"}, "JobSet"),
    "Job of gpu-accept": ("gpu-accept", ACCEPTANCE, "Job"),
    "JobSet of job-group": ("job-group", {}, "JobSet"),
    "Job of job-group": ("job-group", {"layout": "jobs"}, "Job"),
}


def pods(items: list[dict]) -> list[dict]:
    """Specs of all pods."""

    def below(node: object) -> list[dict]:
        if isinstance(node, dict):
            return [node] * ("containers" in node) + [found for each in node.values() for found in below(each)]
        return [found for each in node for found in below(each)] if isinstance(node, list) else []

    found = below(items)
    assert found
    return found


def claims(chart: str, values: dict) -> list[dict]:
    volumes = [volume for spec in pods(render(chart, values)) for volume in spec["volumes"]]
    return [volume["persistentVolumeClaim"] for volume in volumes if "persistentVolumeClaim" in volume]


@pytest.mark.parametrize("chart", CHARTS)
def test_a_claim_for_reading_is_attached_for_reading(chart: str) -> None:
    """A disk that many nodes have, such as one with models, can be attached in no other way."""
    found = claims(chart, CLAIMS[chart])
    assert {"claimName": "c", "readOnly": True} in found and all(claim["readOnly"] for claim in found)


def test_a_claim_for_writing_is_not() -> None:
    written = {"volumes": {"outputs": {"claimName": "o"}, "datasets": {"claimName": "c", "readOnly": False}}}
    assert not any(claim.get("readOnly") for claim in claims("ddp-run", written))
    assert claims("job-group", task(volumes=[{"mountPath": "/data", "claimName": "c"}])) == [{"claimName": "c"}]


@pytest.mark.parametrize("chart", CHARTS)
def test_a_volume_of_many_files_is_not_walked_through_at_each_start(chart: str) -> None:
    etcd = (
        {"launcher": "torchrun", "rendezvous": {"backend": "etcd", "etcd": {"deploy": True}}}
        if chart == "ddp-run"
        else {}
    )
    for spec in pods(render(chart, etcd)):
        assert spec["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


@pytest.mark.parametrize("seconds", [0, 3600])
@pytest.mark.parametrize("case", ENDING)
def test_what_has_finished_may_be_deleted(case: str, seconds: int) -> None:
    chart, values, kind = ENDING[case]
    kept = only(render(chart, values), kind)
    deleted = only(render(chart, {**values, "ttlSecondsAfterFinished": seconds}), kind)
    assert deleted["spec"]["ttlSecondsAfterFinished"] == seconds and "ttlSecondsAfterFinished" not in kept["spec"]


def test_a_deadline_ends_an_acceptance() -> None:
    items = render("gpu-accept", ACCEPTANCE | {"activeDeadlineSeconds": 60})
    assert only(items, "Job")["spec"]["activeDeadlineSeconds"] == 60


@pytest.mark.parametrize("value", ["activeDeadlineSeconds", "ttlSecondsAfterFinished"])
@pytest.mark.parametrize(("chart", "workload"), [("ddp-run", "statefulset"), ("gpu-accept", "daemonset")])
def test_what_never_ends_has_no_end(chart: str, workload: str, value: str) -> None:
    assert value in refusal(chart, {"workload": workload, value: 60})


AMOUNTS = {name: {"cpu": "100m", "memory": "256Mi"} for name in ("requests", "limits")}
HELPER = {"podTemplate": {"spec": {"containers": [{"resources": AMOUNTS}]}}}
OWN_IMAGE = {"program": {"image": "reg.example.com/mine:1", "args": ["train.py"]}}
LIMITED = {
    "a run with etcd": (
        "ddp-run",
        {
            "resources": AMOUNTS,
            "launcher": "torchrun",
            "rendezvous": {"backend": "etcd", "etcd": {"deploy": True, **HELPER}},
            **OWN_IMAGE,
        },
    ),
    "an acceptance": ("gpu-accept", {"device": "cpu", "resources": AMOUNTS, "fleet": HELPER}),
    "a Job of an acceptance": (
        "gpu-accept",
        {"device": "cpu", "resources": AMOUNTS, "fleet": HELPER, **ACCEPTANCE},
    ),
    "a group": ("job-group", {**task(resources=AMOUNTS, launcher="ddp-launch"), "agent": {"resources": AMOUNTS}}),
}


@pytest.mark.parametrize("case", LIMITED)
def test_every_container_may_have_limits(case: str) -> None:
    """Without them a ResourceQuota on limits refuses the pod, also that of `helm test`."""
    chart, values = LIMITED[case]
    for spec in pods(render(chart, values)):
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            assert container["resources"] == AMOUNTS, container["name"]


def test_a_task_may_have_shared_memory_of_its_own() -> None:
    tasks = {"small": {"run": "true"}, "large": {"run": "true", "sharedMemory": {"sizeLimit": "64Gi"}}}
    items = render("job-group", {"schemaVersion": 1, "name": "rl", "tasks": tasks})
    sizes = {
        spec["hostname"]: volume["emptyDir"]["sizeLimit"]
        for spec in pods(items)
        for volume in spec["volumes"]
        if volume["name"] == "shared-memory"
    }
    assert sizes == {"small-0": "16Gi", "large-0": "64Gi"}


def test_shared_memory_of_a_task_is_by_default_that_of_a_run() -> None:
    (run,) = pods(render("ddp-run", {}))
    (rank,) = pods(render("job-group", {}))
    assert [each for each in run["volumes"] if each["name"] == "shared-memory"] == [
        each for each in rank["volumes"] if each["name"] == "shared-memory"
    ]


CLAIM = {"name": "gpus", "resourceClaimTemplateName": "gpus"}
USES = {"resources": {"claims": [{"name": "gpus"}]}}
PROGRAM = {"podTemplate": {"spec": {"resourceClaims": [CLAIM], "containers": [USES]}}}
TESTS = {"podTemplate": {"spec": {"resourceClaims": [CLAIM], "initContainers": [{"name": "accept", **USES}]}}}
CLAIMED = {
    "ddp-run": {"gpusPerNode": 8, "gpuResourceName": "", **PROGRAM},
    "gpu-accept": {"gpuResourceName": "", **TESTS},
    "job-group": task(accelerator={"types": ["H100"], "count": 8}, **PROGRAM) | {"accelerators": {"resourceName": ""}},
}


@pytest.mark.parametrize("chart", CHARTS)
def test_gpus_may_come_from_a_claim_alone(chart: str) -> None:
    """The program still knows their number."""
    containers = [
        container
        for spec in pods(render(chart, CLAIMED[chart]))
        for container in [*spec["containers"], *spec.get("initContainers", [])]
        if "claims" in container.get("resources", {})
    ]
    (container,) = containers
    assert container["resources"] == USES["resources"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    known = {"ddp-run": "NUM_GPUS_PER_NODE", "job-group": "SKYPILOT_NUM_GPUS_PER_NODE"}
    assert "--gpus=8" in container.get("args", []) or env[known[chart]] == "8"


@pytest.mark.parametrize("chart", CHARTS)
def test_gpus_that_come_from_nowhere_are_refused(chart: str) -> None:
    """Without a claim, and with one that another container uses."""
    other = {"initContainers": [{"name": "other", "image": "x", **USES}], "resourceClaims": [CLAIM]}
    for spec in {}, other:
        values = CLAIMED[chart] | {"podTemplate": {"spec": spec}}
        if chart == "job-group":
            values = task(accelerator={"types": ["H100"], "count": 8}, podTemplate={"spec": spec})
            values |= {"accelerators": {"resourceName": ""}}
        assert "resources.claims" in refusal(chart, values)


def test_two_ranks_in_the_network_of_a_node_would_share_a_port() -> None:
    """A declared port lets the scheduler keep them apart."""
    (spec,) = pods(render("job-group", task(podTemplate={"spec": {"hostNetwork": True}})))
    assert [container["ports"] for container in spec["initContainers"]] == [[{"name": "agent", "containerPort": 29499}]]
    (spec,) = pods(render("job-group", {}))
    assert not [container for container in spec["initContainers"] if "ports" in container]


@pytest.mark.parametrize("chart", CHARTS)
def test_a_pod_in_the_network_of_its_node_asks_the_name_server_of_the_cluster(chart: str) -> None:
    """The node's own knows no Service, neither that of a group nor that of the fleet report."""
    values = {
        "ddp-run": {"podTemplate": {"spec": {"hostNetwork": True}}},
        "gpu-accept": {"podTemplate": {"spec": {"hostNetwork": True}}},
        "job-group": task(podTemplate={"spec": {"hostNetwork": True}}),
    }[chart]
    found = [spec["dnsPolicy"] for spec in pods(render(chart, values)) if spec.get("hostNetwork")]
    assert found and set(found) == {"ClusterFirstWithHostNet"}


@pytest.mark.parametrize("chart", CHARTS)
def test_a_mesh_puts_no_sidecar_into_any_pod_that_does_not_ask_for_one(chart: str) -> None:
    """A Job would not end, and an init container has no network before such a sidecar has started."""
    label, common = "sidecar.istio.io/inject", {"commonLabels": {"sidecar.istio.io/inject": "true"}}
    own = {"metadata": {"labels": {label: "true"}}}
    values = {
        "ddp-run": {"launcher": "torchrun", "rendezvous": {"backend": "etcd", "etcd": {"deploy": True}}},
        "gpu-accept": ACCEPTANCE,
        "job-group": task(),
    }[chart]
    asks = {
        "ddp-run": {"podTemplate": {"metadata": {"labels": {label: "true"}}}},
        "gpu-accept": {"podTemplate": own},
        "job-group": task(podTemplate=own),
    }
    assert injected(render(chart, values), label) == {"false"}
    assert injected(render(chart, values | asks[chart] | common), label) == {"true"}


def injected(items: list[dict], label: str) -> set[str]:
    """Values of the label, one of each pod."""

    def below(node: object) -> list[str | None]:
        if isinstance(node, list):
            return [found for each in node for found in below(each)]
        if not isinstance(node, dict):
            return []
        own = [node["metadata"]["labels"].get(label)] if "containers" in node.get("spec", {}) else []
        return own + [found for each in node.values() for found in below(each)]

    return set(below(items))
