"""Simulated GPU nodes (KWOK) behind a real control plane: real scheduler, controllers and DNS.

Their pods run nothing: KWOK sets them ready and gives them an address. The tests measure Kubernetes
only.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hack import test_cluster
from hack.deps import go_tools
from hack.paths import BIN
from tests.helpers.kube import Cluster, wait_until

NODES = 64
# Pods become ready and stay ready until they are deleted: the stage that completes pods of Jobs is
# omitted.
STAGES = ("node/fast/node-initialize", "node/heartbeat-with-lease/node-heartbeat-with-lease")
STAGES += ("pod/fast/pod-ready", "pod/fast/pod-delete")


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    os.environ |= test_cluster.prepare()
    return Cluster(os.environ["WORKER_IMAGE"])


@pytest.fixture(scope="session", autouse=True)
def nodes(cluster, tmp_path_factory) -> Iterator[list[str]]:
    """NODES nodes with 8 H100 each, tainted so that no other pod is scheduled to them."""
    stages = go_tools.build("kwok") / "stages"
    log = tmp_path_factory.mktemp("kwok") / "log"
    selector = "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake"
    command = [BIN / "kwok", "--manage-all-nodes=false", selector, "--cidr=10.64.0.0/14"]
    command += ["--kubeconfig", os.environ["KUBECONFIG"]]
    command += [f"--config={stages / stage}.yaml" for stage in STAGES]
    names = [f"fake-{number:03d}" for number in range(NODES)]
    with log.open("w") as output:
        kwok = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        objects = {"apiVersion": "v1", "kind": "List", "items": [node(name) for name in names]}
        cluster.kubectl("apply", "-f", "-", input=json.dumps(objects))

        def ready():
            assert kwok.poll() is None, Path(log).read_text()[-2000:]
            states = cluster.kubectl("get", "nodes", "-l", "type=kwok", "--no-headers").splitlines()
            return len([line for line in states if line.split()[1] == "Ready"]) == NODES

        wait_until(ready, f"{NODES} fake nodes are ready", 60)
        yield names
    finally:
        cluster.kubectl("delete", "nodes", "-l", "type=kwok", "--wait=false")
        kwok.terminate()
        kwok.wait(20)


NODE = """\
apiVersion: v1
kind: Node
metadata:
  name: NAME
  annotations: {kwok.x-k8s.io/node: fake}
  labels: {type: kwok, kubernetes.io/hostname: NAME, nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
spec: {taints: [{key: kwok.x-k8s.io/node, value: fake, effect: NoSchedule}]}
status: {capacity: &all {cpu: "128", memory: 1Ti, nvidia.com/gpu: "8", pods: "110"}, allocatable: *all}
"""


def node(name: str) -> dict:
    return yaml.safe_load(NODE.replace("NAME", name))
