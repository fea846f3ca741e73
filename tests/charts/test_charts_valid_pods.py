"""No chart renders a pod that Kubernetes refuses: a JobSet accepts it, and one of its Jobs is never created."""

from __future__ import annotations

import json

import pytest

from gpuworker.runtime import contract
from tests.charts.test_charts_refuse import refusal, render, task

NIC = "vpc.amazonaws.com/efa"


def amounts(requests: dict | None = None, limits: dict | None = None) -> dict:
    return {"resources": {"requests": requests or {}, "limits": limits or {}}}


def container(**fields: object) -> dict:
    return {"podTemplate": {"spec": {"containers": [fields]}}}


def pod(**fields: object) -> dict:
    return {"podTemplate": {"spec": fields}}


def claims(of_pod: list, of_container: list) -> dict:
    return pod(resourceClaims=of_pod, containers=[{"resources": {"claims": of_container}}])


def selector(operator: str, *values: str) -> dict:
    term = {"key": "a", "operator": operator, **({"values": [*values]} if values else {})}
    preferred = [{"weight": 1, "preference": {"matchExpressions": [term]}}]
    return pod(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}})


CLAIM = {"name": "c", "resourceClaimName": "c"}
MOUNT = {"name": "mine", "mountPath": "/x"}
VOLUME = {"name": "mine", "emptyDir": {}}
SIDECAR = {"name": "mine", "image": "a"}
INVALID = {
    "memory": (amounts({"memory": "64Mi"}, {"memory": "32Mi"}), "requests 64Mi of memory, above its limit 32Mi"),
    "memory in other units": (amounts({"memory": "1Gi"}, {"memory": "1G"}), "requests 1Gi of memory"),
    "memory in bytes": (amounts({"memory": 68719476737}, {"memory": "64Gi"}), "above its limit 64Gi"),
    "cpu": (amounts({"cpu": 2}, {"cpu": "1999m"}), "requests 2 of cpu"),
    "another name": (container(**amounts({"ram": "1Gi"})), "the unknown name ram"),
    "a name of Kubernetes": (
        amounts(limits={"x.kubernetes.io/gpu": 1}),
        "the name x.kubernetes.io/gpu, which no device",
    ),
    "no limit of a device": (amounts({NIC: 4}), f"requests {NIC} without a limit"),
    "huge pages": (amounts({"hugepages-2Mi": "4Mi"}, {"hugepages-2Mi": "8Mi"}), "they must be equal"),
    "two amounts of a device": (amounts({NIC: 1}, {NIC: 4}), "they must be equal"),
    "huge pages alone": (amounts(limits={"hugepages-2Mi": "4Mi"}), "neither cpu nor memory"),
    "half a huge page": (amounts(limits={"hugepages-2Mi": "3Mi", "memory": "1Gi"}), "not a multiple of the size of a"),
    "memory without a unit": (amounts(limits={"memory": 32}), "32 bytes of memory"),
    "disk without a unit": (amounts({"ephemeral-storage": "100"}), "100 bytes of ephemeral-storage"),
    "a claim that is none": (claims([], [{"name": "c"}]), "the resource claim c, which the pod does not have"),
    "a claim twice": (claims([CLAIM], [{"name": "c"}, {"name": "c"}]), "names the resource claim c twice"),
    "a claim and a part": (claims([CLAIM], [{"name": "c", "request": "r"}, {"name": "c"}]), "resource claim c twice"),
    "two claims of a name": (claims([CLAIM, CLAIM], []), "two resource claims have the name c"),
    "a claim without a source": (claims([{"name": "c"}], []), "the resource claim c has 0 of"),
    "a claim with two sources": (claims([{**CLAIM, "resourceClaimTemplateName": "t"}], []), "claim c has 2 of"),
    "a variable twice": (container(env=[{"name": "A", "value": "1"}, {"name": "A"}]), "the variable A twice"),
    "a variable of a sidecar twice": (
        pod(initContainers=[{**SIDECAR, "env": [{"name": "A"}, {"name": "A"}]}]),
        "mine has the variable A twice",
    ),
    "an image with a scheme": (
        pod(initContainers=[{**SIDECAR, "image": "https://x/y"}]),
        "the image https://x/y, which",
    ),
    "an image in capitals": (pod(initContainers=[{**SIDECAR, "image": "Reg/IMG:1"}]), "the image Reg/IMG:1, which"),
    "an image with two tags": (pod(initContainers=[{**SIDECAR, "image": "x/y:1:2"}]), "the image x/y:1:2, which"),
    "no choice": (selector("In"), "the selector of a has the operator In and no values"),
    "values of any": (selector("Exists", "b"), "the operator Exists and values"),
    "two bounds": (selector("Gt", "1", "2"), "the operator Gt and not one number"),
    "a bound of words": (selector("Lt", "many"), "the operator Lt and not one number"),
    "half a device": (amounts(limits={NIC: "500m"}), f"a fraction of {NIC}"),
    "a mount without a volume": (container(volumeMounts=[MOUNT]), "mounts the volume mine, which does not exist"),
    "subPath": (
        {
            "podTemplate": {
                "spec": {"volumes": [VOLUME], "containers": [{"volumeMounts": [{**MOUNT, "subPath": "a/../../b"}]}]}
            }
        },
        "the subPath a/../../b",
    ),
    "two volumes of a name": (pod(volumes=[VOLUME, VOLUME]), "two volumes have the name mine"),
    "two sources": (pod(volumes=[{**VOLUME, "hostPath": {"path": "/x"}}]), "two sources, emptyDir and hostPath"),
    "two sidecars of a name": (pod(initContainers=[SIDECAR, SIDECAR]), "mine has the name of another one"),
    "a sidecar without an image": (pod(initContainers=[{"name": "mine"}]), "mine has no image"),
    "a value twice": (
        container(env=[{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]),
        "value and valueFrom of the variable A",
    ),
    "a value from nowhere": (container(env=[{"name": "A", "valueFrom": {}}]), "0 sources of the variable A"),
    "Exists with a value": (pod(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}]), "Exists and a value"),
    **{
        f"pages of {size or 'no size'}": (
            container(**amounts(limits={f"hugepages-{size}": "4Mi", "cpu": 1})),
            "unknown name",
        )
        for size in ("", "0", "abc", "2Zi", "0Mi")
    },
    **{
        f"the amount {text!r}": (container(**amounts(limits={"cpu": text})), "cpu")
        for text in ("abc", "", "0x1", "-1", "1K")
    },
    "no key": (pod(tolerations=[{"effect": "NoSchedule"}]), "has no key"),
    "seconds": (pod(tolerations=[{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 1}]), "tolerationSeconds"),
}


@pytest.mark.parametrize("chart", ["ddp-run", "gpu-accept", "job-group"])
@pytest.mark.parametrize("case", INVALID)
def test_a_pod_that_kubernetes_refuses_is_refused(case: str, chart: str) -> None:
    values, message = INVALID[case]
    assert message in refusal(chart, task(**values) if chart == "job-group" else values)


def test_values_of_the_chart_itself_and_of_its_sidecar_are_judged_too() -> None:
    tolerations = {"tolerations": [{"effect": "NoSchedule"}]}
    assert "has no key" in refusal("ddp-run", {**tolerations, "workload": "jobset"})
    assert "has no key" in refusal("job-group", tolerations)
    below = {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}
    assert "the container agent requests 2 of cpu" in refusal("job-group", {"agent": {"resources": below}})
    fleet = refusal("gpu-accept", {"fleet": {"resources": below, **tolerations}})
    assert "fleet: " in fleet and "the container fleet requests 2 of cpu" in fleet and "has no key" in fleet
    store = {"deploy": True, "image": "x/y:1:2", "resources": below}
    etcd = refusal("ddp-run", {"launcher": "torchrun", "rendezvous": {"backend": "etcd", "etcd": store}})
    assert "rendezvous.etcd: " in etcd and "the container etcd requests 2 of cpu" in etcd and "image x/y:1:2" in etcd


def test_the_image_of_the_program_is_a_reference() -> None:
    message = "the image https://x/y, which is not a reference"
    assert message in refusal("ddp-run", {"program": {"image": "https://x/y", "args": ["x"]}})
    assert message in refusal("job-group", task(image="https://x/y"))
    for image in ("w", "reg:5000/a/b", "[::1]:5000/w:1", "Reg.example.com/a__b/c-d.e:1@sha256:" + "0a" * 32):
        assert render("ddp-run", {"program": {"image": image, "args": ["x"]}})


PLACES = ("/", "/proc", "/proc/x", "/sys/", "/dev", "//tmp", "/run/gpu-charts", "/run/gpu-charts/key")
CHARTS_CONTAINERS = {"gpu-accept": "accept", "job-group": "agent"}


def mounted(path: str, kind: str = "containers", **fields: str) -> dict:
    return pod(volumes=[VOLUME], **{kind: [{**fields, "volumeMounts": [{**MOUNT, "mountPath": path}]}]})


@pytest.mark.parametrize("chart", contract.RESERVED_MOUNTS)
@pytest.mark.parametrize("path", PLACES)
def test_nothing_is_mounted_at_a_place_of_the_chart_or_of_the_system(path: str, chart: str) -> None:
    own = CHARTS_CONTAINERS.get(chart)
    for values in [mounted(path), *([mounted(path, "initContainers", name=own)] if own else [])]:
        message = refusal(chart, task(**values) if chart == "job-group" else values)
        assert f"volumeMounts: {path} is a place of the chart or of the system" in message


@pytest.mark.parametrize("chart", ["ddp-run", "gpu-accept"])
def test_the_place_of_the_programs_is_reserved(chart: str) -> None:
    assert "volumeMounts: /programs is a place" in refusal(chart, mounted("/programs"))


@pytest.mark.parametrize("path", ["/group", "/group/home", "/group/x"])
def test_the_places_of_a_group_are_reserved_in_groups(path: str) -> None:
    assert f"volumeMounts: {path} is a place" in refusal("job-group", task(**mounted(path)))
    assert f"tasks.t.volumes: {path} is already" in refusal(
        "job-group", task(volumes=[{"mountPath": path, "claimName": "c"}])
    )
    assert render("ddp-run", mounted(path))


def test_other_places_and_those_of_a_sidecar_are_the_users() -> None:
    for path in ("/tmp/x", "/dev/shm", "/dev/infiniband", "/groups", "/out/x", "/run/mine"):
        assert render("job-group", task(**mounted(path))) and render("ddp-run", mounted(path))
    assert render("job-group", task(**mounted("/dev/shm", "initContainers", name="mine", image="a")))


VALID = {
    "equal in other units": amounts({"memory": "64Gi"}, {"memory": 68719476736}),
    "a fraction": amounts({"cpu": 0.5}, {"cpu": "500m"}),
    "exponents": container(**amounts({"memory": "1e9"}, {"memory": "1G"})),
    "exponents of the chart's own": amounts({"memory": "129e6"}, {"memory": "1e9"}),
    "odd forms": container(**amounts({"cpu": ".5", "memory": "+5."}, {"cpu": "5e-1"})),
    "exa": amounts({"memory": "1P"}, {"memory": "1E"}),
    "devices": amounts({NIC: 4}, {NIC: "4"}),
    "requests alone": amounts({"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}),
    "a toleration of everything": pod(tolerations=[{"operator": "Exists"}]),
    "a claim": pod(volumes=[{"name": "mine", "persistentVolumeClaim": {"claimName": "c"}}]),
    "huge pages": amounts(limits={"hugepages-1Gi": "2Gi", "memory": "1Gi"}),
    "no memory": amounts({"memory": 0}),
    "claims": claims([CLAIM], [{"name": "c", "request": "a"}, {"name": "c", "request": "b"}]),
    "selectors": selector("DoesNotExist"),
    "an empty value": container(env=[{"name": "A", "value": ""}]),
}


CLASS = "deviceclass.resource.kubernetes.io/gpu.nvidia.com"


def test_a_device_class_may_stand_for_the_resource_of_a_gpu() -> None:
    assert f'"{CLASS}": 8' in json.dumps(render("ddp-run", {"gpuResourceName": CLASS, "gpusPerNode": 8}))
    assert "which no device has" in refusal("ddp-run", {"gpuResourceName": "kubernetes.io/gpu", "gpusPerNode": 8})


@pytest.mark.parametrize("case", VALID)
def test_a_pod_that_kubernetes_accepts_is_rendered(case: str) -> None:
    assert render("job-group", task(**VALID[case]))
    assert render("ddp-run", VALID[case])
