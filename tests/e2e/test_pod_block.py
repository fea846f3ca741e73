"""What a namespace and a user demand of pods: a quota, an account, Secrets, a runtime class, and
sidecars.
"""

import json

import pytest

from tests.e2e.test_gpu_accept import accept, fleet_is_ready
from tests.helpers.ddp_pods import job_ends, logs_by_node
from tests.helpers.ddp_pods import node_pods as run_pods
from tests.helpers.group_pods import all_succeed, each_workload, launch
from tests.helpers.kube import Namespace, wait_until
from tests.helpers.rendering import sets

QUOTA = """\
apiVersion: v1
kind: ResourceQuota
metadata: {name: team}
spec: {hard: {requests.cpu: 8, requests.memory: 8Gi, limits.cpu: 8, limits.memory: 8Gi, pods: 20}}
"""
AMOUNTS = {"cpu": "250m", "memory": "512Mi"}
GUARANTEED = {"requests": AMOUNTS, "limits": AMOUNTS}
SMALL = {name: {"cpu": "100m", "memory": "256Mi"} for name in ("requests", "limits")}
GROUP = """\
---
name: grp
execution: parallel
---
name: a
num_nodes: 2
run: echo "$SKYPILOT_NODE_RANK ran"
---
name: b
run: echo ran
"""
PROGRAM = """
import os, pathlib, getpass
import torch.distributed as dist
dist.init_process_group("gloo")
token = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount/token").exists()
print("secret", os.environ["FROM_SECRET"], "token", token, "user", getpass.getuser(), flush=True)
dist.barrier()  # a rank that ends while another still connects fails it
dist.destroy_process_group()
"""
OBJECTS = """\
apiVersion: v1
kind: ServiceAccount
metadata: {name: trainer}
---
apiVersion: v1
kind: Secret
metadata: {name: tracker}
stringData: {FROM_SECRET: "s3cret"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: program}
data:
  train.py: |
"""


VALUES = """\
nodes: 2
terminationGracePeriodSeconds: 20
env: {OMP_NUM_THREADS: "1"}
program: {args: [/program/train.py]}
podTemplate:
  spec:
    serviceAccountName: trainer
    automountServiceAccountToken: true
    runtimeClassName: RUNTIME
    volumes: [{name: program, configMap: {name: program}}]
    containers:
      - envFrom: [{secretRef: {name: tracker}}]
        volumeMounts: [{name: program, mountPath: /program}]
    initContainers:
      - name: shipper
        image: IMAGE
        restartPolicy: Always
        command: [sleep, infinity]
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
"""


@pytest.fixture
def limited(namespace) -> Namespace:
    namespace.apply(QUOTA)
    # Until the quota controller has counted once, the quota admits nothing.
    wait_until(
        lambda: namespace.objects("resourcequotas")[0].get("status", {}).get("used"),
        "the quota counts",
        60,
    )
    return namespace


def assert_guaranteed(pods: list[dict]):
    assert pods and {pod["status"]["qosClass"] for pod in pods} == {"Guaranteed"}


def test_a_quota_admits_a_run_with_guaranteed_pods(limited):
    program = {"args": ["-m", "gpuworker.accept.ddp_tests", "--report-dir", "/out"]}
    settings = sets(resources=GUARANTEED, nodes=2, env={"OMP_NUM_THREADS": "1"}, program=program)
    limited.install("run", "ddp-run", *settings)
    assert job_ends(limited) == "Complete", limited.why("run")
    assert_guaranteed(run_pods(limited))


@each_workload
def test_a_quota_admits_a_group_with_guaranteed_pods(limited, workload):
    resources = {f"tasks.{name}.resources": GUARANTEED for name in ("a", "b")}
    launch(limited, GROUP, *sets(workload=workload, agent={"resources": SMALL}, **resources))
    assert_guaranteed([*all_succeed(limited, "a-0", "a-1", "b-0").values()])


def test_a_quota_admits_an_acceptance_with_guaranteed_pods(limited):
    page = {"podTemplate": {"spec": {"containers": [{"resources": SMALL}]}}}
    accept(limited, *sets(resources=GUARANTEED, fleet=page))
    wait_until(lambda: fleet_is_ready(limited), "the fleet has passed", 240)
    limited.helm("test", "accept", "--timeout", "120s")
    assert_guaranteed(limited.objects("pods"))


def test_account_secrets_and_runtime_class_reach_a_run_and_its_sidecar_ends(
    namespace,
):
    """A sidecar that never ends by itself does not keep the run from ending."""
    program = "".join(f"    {line}\n" for line in PROGRAM.strip().splitlines())
    namespace.apply(OBJECTS + program)
    runtime = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": namespace.name},
    }
    namespace.apply(json.dumps(runtime | {"handler": "runc"}))
    values = VALUES.replace("RUNTIME", namespace.name).replace("IMAGE", namespace.cluster.image)
    try:
        namespace.install("run", "ddp-run", values=values)
        assert job_ends(namespace) == "Complete", namespace.why("run")
        pods = run_pods(namespace)
        assert {pod["spec"]["runtimeClassName"] for pod in pods} == {namespace.name}
        logs = logs_by_node(namespace)
        for node in (0, 1):
            assert "secret s3cret token True user " in logs[node], logs
    finally:
        namespace.kubectl("delete", "runtimeclass", namespace.name, "--wait=false")
