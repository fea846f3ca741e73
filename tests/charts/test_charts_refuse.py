"""What the charts refuse instead of rendering objects that Kubernetes refuses, or that run something else."""

from __future__ import annotations

import json

import pytest
import yaml

from hack.gen import pod_schema
from tests.helpers.rendering import CHARTS, HELMS, REPO, objects, template


def pod_labels(name: str) -> dict:
    return {"podTemplate": {"metadata": {"labels": {name: "x"}}}}


GROUP = {"schemaVersion": 1, "name": "rl", "tasks": {"t": {"run": "true"}}}
RUN = {"ddp-run": {}, "gpu-accept": {}, "job-group": GROUP}
ETCD = {"launcher": "torchrun", "rendezvous": {"backend": "etcd", "etcd": {"deploy": True}}}


def task(**fields: object) -> dict:
    return {**GROUP, "tasks": {"t": {"run": "true", **fields}}}


def etcd(endpoint: str) -> dict:
    return {"launcher": "torchrun", "rendezvous": {"backend": "etcd", "etcd": {"endpoint": endpoint}}}


def render(chart: str, values: dict, *options: str, release: str = "test") -> list[dict]:
    done = template("helm", chart, json.dumps({**RUN[chart], **values}).encode(), *options, release=release)
    assert done.returncode == 0, done.stderr.decode()
    return objects(done.stdout.decode())


def refusal(chart: str, values: dict, *options: str, release: str = "test", helm: str = "helm") -> str:
    done = template(helm, chart, json.dumps({**RUN[chart], **values}).encode(), *options, release=release)
    assert done.returncode, done.stdout.decode()
    return done.stderr.decode()


def only(items: list[dict], kind: str) -> dict:
    """The object of this kind, without those of hooks, such as the Job of `helm test`."""
    of_kind = [item for item in items if item["kind"] == kind]
    (found,) = [item for item in of_kind if "helm.sh/hook" not in item["metadata"].get("annotations", {})]
    return found


def pod_of(items: list[dict], end: str) -> dict:
    """The pod of the workload whose name ends so."""
    workloads = ("Deployment", "Job")
    (found,) = [x for x in items if x["kind"] in workloads and x["metadata"]["name"].endswith(f"-{end}")]
    return found["spec"]["template"]["spec"]


GPU = "nvidia.com/gpu"
REFUSED = {
    "gpus beside gpusPerNode": ("ddp-run", {"resources": {"limits": {GPU: 8}}}, "resources.limits: "),
    "gpus as requests": ("gpu-accept", {"resources": {"requests": {GPU: 4}}}, "resources.requests: "),
    "gpus of a task": ("job-group", task(resources={"limits": {GPU: "8"}}), "tasks.t.resources.limits: "),
    "an unquoted N of YAML": ("ddp-run", {"env": {"false": "x"}}, "env.false: "),
    "an unquoted on of YAML": ("job-group", task(env={"true": "x"}), "tasks.t.env.true: "),
    "an unquoted ~ of YAML": ("gpu-accept", {"env": {"null": "x"}}, "env.null: "),
    "a task named no": ("job-group", {"tasks": {"false": {"run": "true"}}}, "tasks.false: "),
    "no user of the pods": ("ddp-run", {"podSecurityContext": None}, "podSecurityContext: "),
    "no locks of the program": ("job-group", {"containerSecurityContext": None}, "containerSecurityContext: "),
    "no tolerations": ("gpu-accept", {"tolerations": None}, "tolerations: "),
    "an image that the chart does not know": (
        "ddp-run",
        {"podTemplate": {"spec": {"containers": [{"image": "mine:1"}]}}},
        "podTemplate.spec.containers[0].image: ",
    ),
    "labels of the chart": ("ddp-run", pod_labels("app.kubernetes.io/instance"), "/podTemplate/metadata/labels/"),
    "a queue of pods": ("ddp-run", pod_labels("kueue.x-k8s.io/queue-name"), "labels/kueue.x-k8s.io~1queue-name"),
    "shared memory of 16 bytes": ("ddp-run", {"sharedMemory": {"sizeLimit": "16"}}, "sharedMemory/sizeLimit"),
    "shared memory in thousandths": ("job-group", task(sharedMemory={"sizeLimit": "500m"}), "sharedMemory/sizeLimit"),
    "etcd by a URL": ("ddp-run", etcd("http://etcd:2379"), "etcd/endpoint"),
    "etcd with a password": ("ddp-run", etcd("user:word@etcd:2379"), "etcd/endpoint"),
    "capital kilo": ("ddp-run", {"sharedMemory": {"sizeLimit": "16K"}}, "sizeLimit"),
    "a negative amount": ("ddp-run", {"resources": {"requests": {"cpu": -1}}}, "cpu"),
    "a repository with a tag": ("ddp-run", {"image": {"repository": "reg/w:1.2"}}, "image.repository: "),
    "a repository with a digest": ("job-group", {"image": {"repository": "reg/w@sha256:00"}}, "image.repository: "),
    "a tag that is none": ("gpu-accept", {"image": {"repository": "reg/w", "tag": "a b"}}, "image/tag"),
    "a queue of a DaemonSet": ("gpu-accept", {"kueue": {"queueName": "team-a"}}, "kueue.queueName: "),
    "no time to save": ("ddp-run", {"terminationGracePeriodSeconds": 14}, "terminationGracePeriodSeconds: "),
    "a volume in /proc": (
        "job-group",
        task(volumes=[{"mountPath": "/proc/x", "claimName": "c"}]),
        "tasks.t: the mountPath /",
    ),
    "a volume at the root": (
        "job-group",
        task(volumes=[{"mountPath": "/.", "claimName": "c"}]),
        "tasks.t: the mountPath /",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_by_its_path(case: str) -> None:
    chart, values, path = REFUSED[case]
    done = template("helm", chart, json.dumps({**RUN[chart], **values}).encode(), *repository(values))
    assert done.returncode and path in done.stderr.decode(), done.stderr.decode()


def repository(values: dict) -> list[str]:
    """template() sets the repository; this is the case's own."""
    own = values.get("image", {}).get("repository")
    return ["--set", f"image.repository={own}"] if own else []


@pytest.mark.parametrize("repository", ["w", "reg:5000/team/w", "Reg.example.com/a__b/c-d.e"])
def test_a_repository_may_have_a_port(repository: str) -> None:
    assert render("ddp-run", {}, "--set", f"image.repository={repository}")


@pytest.mark.parametrize("chart", ["ddp-run", "gpu-accept"])
@pytest.mark.parametrize("release", ["8gpu", "run.v1"])
def test_a_release_whose_service_would_have_no_name_is_refused(chart: str, release: str) -> None:
    assert "Service" in refusal(chart, {}, release=release)


@pytest.mark.parametrize("chart", ["ddp-run", "gpu-accept"])
def test_two_long_releases_share_no_name(chart: str) -> None:
    long = "llama-70b-pretraining-2026-11-experiment-run"
    names = [{each["metadata"]["name"] for each in render(chart, {}, release=f"{long}-{end}")} for end in "ab"]
    assert not names[0] & names[1]


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize("chart", CHARTS)
def test_a_blank_key_is_refused_by_its_path(chart: str, helm: str) -> None:
    known = yaml.safe_load((REPO / f"charts/{chart}/values.yaml").read_text())
    for path in ("image.pullPolicy", "sharedMemory", "env" if "env" in known else "workload", "networkPolicy.egress"):
        values: dict | None = None
        for step in reversed(path.split(".")):
            values = {step: values}
        assert f"{path}: the key has no value" in refusal(chart, values, helm=helm)


def test_a_fraction_of_a_processor_is_text_and_a_large_number_whole() -> None:
    amounts = {"cpu": 0.5, "memory": 68719476736, "example.com/nic": 8}
    resources = {"requests": amounts, "limits": {"example.com/nic": 8}}
    (job,) = only(render("job-group", task(resources=resources)), "JobSet")["spec"]["replicatedJobs"]
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "0.5", "memory": 68719476736, "example.com/nic": 8}


@pytest.mark.parametrize(("delay", "program"), [(0, "597"), (100, "497")])
def test_the_program_has_the_grace_period_of_its_pod_template(delay: int, program: str) -> None:
    pod = {"spec": {"terminationGracePeriodSeconds": 600}}
    values = task(podTemplate=pod, terminationDelaySeconds=delay, launcher="ddp-launch")
    (job,) = only(render("job-group", values), "JobSet")["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]["template"]["spec"]
    env = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
    assert spec["terminationGracePeriodSeconds"] == 600
    assert env["GPU_CHARTS_GRACE_S"] == program
    assert f"--grace-period={int(program) - 7}" in env["GPU_CHARTS_LAUNCHER"]


def test_pods_that_need_no_gpu_fit_on_a_cluster_of_tainted_gpu_nodes() -> None:
    tolerations = [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "sku", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"},
    ]
    assert only(render("ddp-run", ETCD), "Deployment")["spec"]["template"]["spec"]["tolerations"] == tolerations
    fleet = {"fleet": {"podTemplate": {"spec": {"tolerations": [{"key": "x"}]}}}}
    for name in ("fleet", "test"):
        found = pod_of(render("gpu-accept", fleet), name)["tolerations"]
        assert all(each in found for each in [*tolerations, {"key": "x"}])


def test_a_quota_on_limits_admits_the_pods_that_need_no_gpu() -> None:
    accept = render("gpu-accept", {})
    for pod in (pod_of(render("ddp-run", ETCD), "etcd"), pod_of(accept, "fleet"), pod_of(accept, "test")):
        (container,) = pod["containers"]
        limits, requests = (container["resources"][part] for part in ("limits", "requests"))
        assert {*limits} == {*requests} == {"cpu", "memory"}


@pytest.mark.parametrize("chart", CHARTS)
def test_egress_allows_the_dns_port_of_openshift(chart: str) -> None:
    rules = only(render(chart, {}, "--set", "networkPolicy.restrictEgress=true"), "NetworkPolicy")["spec"]["egress"]
    assert {"port": 5353, "protocol": "UDP"} in [port for rule in rules for port in rule.get("ports", [])]


def ingress(rule: dict) -> dict:
    return {"networkPolicy": {"ingress": [rule]}}


SPEC = {"spec": {"runtimeClasName": "nvidia"}}
MISSPELT = {
    "pod spec": ("job-group", task(podTemplate=SPEC), "runtimeClasName"),
    "container": (
        "job-group",
        task(podTemplate={"spec": {"containers": [{"readinesProbe": {}}]}}),
        "readinesProbe",
    ),
    "a type": ("job-group", task(podTemplate={"spec": {"hostNetwork": "yes"}}), "hostNetwork"),
    "security context": ("gpu-accept", {"containerSecurityContext": {"runAsUsr": 1}}, "runAsUsr"),
    "pod security context": ("ddp-run", {"podSecurityContext": {"fsgroup": 1}}, "fsgroup"),
    "toleration": ("ddp-run", {"tolerations": [{"keys": "x"}]}, "keys"),
    "amount": ("ddp-run", {"resources": {"limits": {"memroy": 1}}}, "'/resources/limits': additional properties "),
    "variable": ("job-group", task(env={"a b": "x"}), "'/tasks/t/env': additional properties 'a b'"),
    "node label": ("gpu-accept", {"nodeSelector": {"a b": "x"}}, "'/nodeSelector': additional properties 'a b'"),
    "rule": ("ddp-run", {"networkPolicy": {"ingress": [{"port": [{"port": 1}]}]}}, "port"),
    # What hack/gen/pod_schema.py adds to the fields: a choice, a pattern, a range, a port or its name, a network.
    "effect": ("ddp-run", {"tolerations": [{"key": "a", "effect": "NoShedule"}]}, "'/tolerations/0/effect': "),
    "key of a label": ("gpu-accept", {"nodeSelector": {"a/b/c": "d"}}, "'/nodeSelector': "),
    "number of a port": ("ddp-run", ingress({"ports": [{"port": 99999}]}), "/ingress/0/ports/0/port': "),
    "name of a port": ("gpu-accept", ingress({"ports": [{"port": "443"}]}), "/ingress/0/ports/0/port': "),
    "network": ("job-group", ingress({"from": [{"ipBlock": {"cidr": "::/129"}}]}), "/from/0/ipBlock/cidr': "),
}


@pytest.mark.parametrize("helm", HELMS)
@pytest.mark.parametrize("case", MISSPELT)
def test_a_misspelt_field_or_value_of_kubernetes_is_refused(case: str, helm: str) -> None:
    chart, values, name = MISSPELT[case]
    assert name in refusal(chart, values, helm=helm)


def test_the_fields_are_those_of_the_kubernetes_that_is_tested() -> None:
    assert pod_schema.TARGET.read_text() == pod_schema.text()


QUEUE = {"kueue.x-k8s.io/queue-name": "team-a", "kueue.x-k8s.io/priority-class": "high"}
QUEUED = {
    "Job of ddp-run": ("ddp-run", {}, "Job"),
    "JobSet of ddp-run": ("ddp-run", {"workload": "jobset"}, "JobSet"),
    "StatefulSet of ddp-run": ("ddp-run", {"workload": "statefulset"}, "StatefulSet"),
    "Job of gpu-accept": ("gpu-accept", {"workload": "job", "nodes": 2}, "Job"),
    "JobSet of job-group": ("job-group", {}, "JobSet"),
}


@pytest.mark.parametrize("case", QUEUED)
def test_every_workload_may_have_a_queue_and_another_queue_is_another_object(case: str) -> None:
    chart, values, kind = QUEUED[case]
    queued = only(render(chart, {**values, "kueue": {"queueName": "team-a", "priorityClass": "high"}}), kind)
    plain = only(render(chart, values), kind)
    assert QUEUE.items() <= queued["metadata"]["labels"].items()
    assert not QUEUE.keys() & plain["metadata"]["labels"].keys()
    assert queued["metadata"]["name"] != plain["metadata"]["name"]


@pytest.mark.parametrize("workload", ["indexed-job", "jobset"])
def test_a_run_may_have_a_deadline_and_one_topology_domain(workload: str) -> None:
    rack = "example.com/rack"
    items = render("ddp-run", {"workload": workload, "activeDeadlineSeconds": 60, "placement": {"topologyKey": rack}})
    spec = next(item for item in items if item["kind"] in ("Job", "JobSet"))["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"] if workload == "jobset" else spec
    assert job["activeDeadlineSeconds"] == 60
    affinity = job["template"]["spec"]["affinity"]
    (term,) = affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == rack and "podAntiAffinity" in affinity
    assert term["labelSelector"]["matchLabels"].items() <= job["template"]["metadata"]["labels"].items()


def test_no_label_of_an_a100_stands_for_both_sizes_of_memory() -> None:
    table = yaml.safe_load((REPO / "charts/job-group/files/gpu-types.yaml").read_text())
    assert sum("A100" in types for types in table.values()) > 3
    assert not [label for label, types in table.items() if {*types.get("A100", [])} & {*types.get("A100-80GB", [])}]
