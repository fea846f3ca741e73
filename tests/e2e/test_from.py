"""jobgen from, with manifests of each kind: the values are installed, and the program ends well on two nodes."""

from __future__ import annotations

import sys

import pytest
import yaml

from tests.helpers.kube import Namespace, run, wait_until

TORCHRUN = ["torchrun", "--nnodes=2", "--nproc_per_node=1", "--rdzv-backend=c10d", "/app/src/train.py"]
PYTHON = ["python3", "-u", "/app/src/train.py"]
DLROVER = "dlrover-run --network-check --nnodes=$NODE_NUM --nproc_per_node=1 \\\n /app/src/train.py"


def pod(image: str, command: list[str]) -> dict:
    container = {
        "name": "main",
        "image": image,
        "command": command,
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
    }
    return {"spec": {"containers": [container]}}


def manifests(image: str) -> dict[str, dict]:
    torchrun, python = pod(image, TORCHRUN), pod(image, PYTHON)
    job = {"spec": {"parallelism": 2, "completions": 2, "template": torchrun}}
    trainer = {"numNodes": 2, "numProcPerNode": 1, "image": image, "command": TORCHRUN,
               "env": [{"name": "OMP_NUM_THREADS", "value": "1"}]}  # fmt: skip
    worker = {"replicas": 2, "template": pod(image, ["sh", "-c", DLROVER])}
    roles = {"Master": {"replicas": 1, "template": python}, "Worker": {"replicas": 1, "template": python}}
    return {
        "PyTorchJob": {"pytorchReplicaSpecs": roles},
        "Job": {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "template": torchrun},
        "JobSet": {"replicatedJobs": [{"name": "w", "replicas": 1, "template": job}]},
        "TrainJob": {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer},
        "ElasticJob": {"distributionStrategy": "AllreduceStrategy", "replicaSpecs": {"worker": worker}},
        "StatefulSet": {"replicas": 2, "serviceName": "t", "selector": {}, "template": torchrun},
    }


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.matrix if number else ()) for number, kind in enumerate(manifests(""))],
)
def test_what_became_of_a_manifest_runs(namespace: Namespace, kind: str) -> None:
    body = manifests(namespace.cluster.image)[kind]
    text = yaml.safe_dump({"apiVersion": "x/v1", "kind": kind, "metadata": {"name": "old-run"}, "spec": body})
    values = run(sys.executable, "-m", "jobgen", "from", "-", input=text)
    namespace.install("run", "ddp-run", "--set", "timeouts.joinSeconds=120", values=values)

    def finished() -> list[str]:
        pods = namespace.objects("pods", "app.kubernetes.io/instance=run,app.kubernetes.io/component=node")
        logs = [namespace.logs(each["metadata"]["name"], "trainer") for each in pods if has_begun(each)]
        assert not any("[FATAL]" in log for log in logs), logs
        return logs if len(logs) == 2 and all("[DONE] node=" in log and "world=2" in log for log in logs) else []

    logs = wait_until(finished, "both nodes are done", 240)
    assert any("status=finished exit_code=0" in log for log in logs), logs


def has_begun(pod: dict) -> bool:
    states = pod.get("status", {}).get("containerStatuses", [])
    return any("running" in each["state"] or "terminated" in each["state"] for each in states)
