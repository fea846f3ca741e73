"""What the charts refuse instead of rendering objects that Kubernetes refuses, or that run
something else.
"""

import pytest
import yaml

from hack.gen import pod_schema
from tests.helpers.rendering import REPO, each_chart, each_helm, refusal, render

# What is wrong -> chart, values, a part of the message.
REFUSED = yaml.safe_load("""
gpus beside gpusPerNode: [ddp-run, {resources: {limits: {nvidia.com/gpu: 8}}}, 'resources.limits: ']
gpus as requests: [gpu-accept, {resources: {requests: {nvidia.com/gpu: 4}}}, 'resources.requests: ']
gpus of a task: [job-group, {tasks: {t: {run: 'true',
  resources: {limits: {nvidia.com/gpu: '8'}}}}}, 'tasks.t.resources.limits: ']
an unquoted N of YAML: [ddp-run, {env: {'false': x}}, 'env.false: ']
an unquoted on of YAML: [job-group, {tasks: {t: {run: 'true', env: {'true': x}}}},
  'tasks.t.env.true: ']
an unquoted ~ of YAML: [gpu-accept, {env: {'null': x}}, 'env.null: ']
a task named no: [job-group, {tasks: {'false': {run: 'true'}}}, 'tasks.false: ']
an image of one's own: [ddp-run, {podTemplate: {spec: {containers: [{image: 'a:1'}]}}},
  'containers[0].image: ']
a queue of pods: [ddp-run, {podTemplate: {metadata: {labels: {kueue.x-k8s.io/queue-name: x}}}},
  labels/kueue.x-k8s.io~1queue-name]
shared memory of 16 bytes: [ddp-run, {sharedMemory: {sizeLimit: '16'}}, sharedMemory/sizeLimit]
etcd with a password: [ddp-run, {launcher: torchrun, rendezvous: {backend: etcd,
  etcd: {endpoint: 'user:word@etcd:2379'}}}, etcd/endpoint]
a negative amount: [ddp-run, {resources: {requests: {cpu: -1}}}, cpu]
a tag that is none: [gpu-accept, {image: {repository: reg/w, tag: a b}}, image/tag]
a queue of a DaemonSet: [gpu-accept, {kueue: {queueName: team-a}}, 'workload: ']
no time to save: [ddp-run, {terminationGracePeriodSeconds: 14}, 'terminationGracePeriodSeconds: ']
# A misspelt field or value of Kubernetes.
pod spec: [job-group, {tasks: {t: {run: 'true',
  podTemplate: {spec: {runtimeClasName: nvidia}}}}}, runtimeClasName]
container: [job-group, {tasks: {t: {run: 'true',
  podTemplate: {spec: {containers: [{readinesProbe: {}}]}}}}}, readinesProbe]
a type: [job-group, {tasks: {t: {run: 'true', podTemplate: {spec: {hostNetwork: 'yes'}}}}},
  hostNetwork]
security context: [gpu-accept, {containerSecurityContext: {runAsUsr: 1}}, runAsUsr]
toleration: [ddp-run, {tolerations: [{keys: x}]}, keys]
amount: [ddp-run, {resources: {limits: {memroy: 1}}},
  "'/resources/limits': additional properties "]
variable: [job-group, {tasks: {t: {run: 'true', env: {a b: x}}}},
  "'/tasks/t/env': additional properties 'a b'"]
# What hack/gen/pod_schema.py adds: a choice, a pattern, a range, a port or its name, a network.
effect: [ddp-run, {tolerations: [{key: a, effect: NoShedule}]}, "'/tolerations/0/effect': "]
key of a label: [gpu-accept, {nodeSelector: {a/b/c: d}}, "'/nodeSelector': "]
number of a port: [ddp-run, {networkPolicy: {ingress: [{ports: [{port: 99999}]}]}},
  "/ingress/0/ports/0/port': "]
name of a port: [gpu-accept, {networkPolicy: {ingress: [{ports: [{port: '443'}]}]}},
  "/ingress/0/ports/0/port': "]
network: [job-group, {networkPolicy: {ingress: [{from: [{ipBlock: {cidr: '::/129'}}]}]}},
  "/from/0/ipBlock/cidr': "]
""")


@each_helm
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_by_its_path(case, helm):
    chart, values, path = REFUSED[case]
    assert path in refusal(chart, values, helm=helm)


def test_a_repository_may_have_a_port_and_no_tag():
    for repository in ("w", "reg:5000/team/w", "Reg.example.com/a__b/c-d.e"):
        assert render("ddp-run", {}, "--set", f"image.repository={repository}")
    for repository in ("reg/w:1.2", "reg/w@sha256:00"):
        assert "image.repository: " in refusal(
            "job-group", {}, "--set", f"image.repository={repository}"
        )


@each_helm
@each_chart
def test_a_blank_key_is_refused_by_its_path(chart, helm):
    for block, key in (
        ("image", "pullPolicy"),
        ("podSecurityContext", ""),
        ("networkPolicy", "egress"),
    ):
        path = f"{block}.{key}".strip(".")
        assert f"{path}: the key has no value" in refusal(
            chart, {block: {key: None} if key else None}, helm=helm
        )


def test_the_fields_are_those_of_the_kubernetes_that_is_tested():
    assert pod_schema.TARGET.read_text() == pod_schema.text()


def test_no_label_of_an_a100_stands_for_both_sizes_of_memory():
    table = yaml.safe_load((REPO / "charts/job-group/files/gpu-types.yaml").read_text())
    assert sum("A100" in types for types in table.values()) > 3
    assert not [
        label
        for label, types in table.items()
        if {*types.get("A100", [])} & {*types.get("A100-80GB", [])}
    ]
