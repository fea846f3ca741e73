"""GPUs, volumes and places: rows 3.2 and 7.1 of the plan, and placement."""

import json
from collections.abc import Iterator

import pytest

from tests.helpers.group_pods import all_succeed, launch, output, rank, wait_for_output
from tests.helpers.kube import by_host, new_namespace, racks, start_pod


@pytest.fixture
def gpu_node(namespace) -> Iterator[str]:
    """A node that advertises 8 T4, which the scheduler cannot verify."""
    node = namespace.cluster.schedulable_nodes()[-1]

    def say(operation):
        patch = {"op": operation, "path": "/status/capacity/nvidia.com~1gpu"}
        patch |= {"value": "8"} if operation == "add" else {}
        namespace.cluster.kubectl(
            "patch", "node", node, "--subresource=status", "--type=json", "-p", json.dumps([patch])
        )

    say("add")
    namespace.cluster.kubectl(
        "label", "node", node, "nvidia.com/gpu.product=Tesla-T4", "--overwrite"
    )
    yield node
    namespace.cluster.kubectl("label", "node", node, "nvidia.com/gpu.product-")
    say("remove")


@pytest.mark.row("3.2", "GPU + CPU")
def test_gpu_and_cpu_jobs(namespace, gpu_node):
    """gpu-trainer gets a T4 on the node that has them, by its label; the CPU job runs beside it and
    knows its name. (On nodes that claim GPUs which they do not have: scheduling is real, nvidia-smi
    is not.)
    """
    launch(namespace, "k8s_gpu_cpu_test.yaml")
    wait_for_output(namespace, "gpu-trainer-0", "GPU trainer starting")
    trainer = rank(namespace, "gpu-trainer-0")
    assert trainer["spec"]["nodeName"] == gpu_node
    assert trainer["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    all_succeed(namespace, "gpu-trainer-0", "cpu-preprocessor-0")
    assert "Can reach trainer at: gpu-trainer-0.k8s-gpu-cpu-group" in output(
        namespace, "cpu-preprocessor-0"
    )


VOLUME = """\
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {name}}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteMany]
  storageClassName: {name}
  hostPath: {{path: /var/lib/{name}, type: Directory}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: shared-volume, namespace: {namespace}}}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: {name}
  resources: {{requests: {{storage: 1Gi}}}}
"""


@pytest.fixture
def shared_volume(namespace) -> Iterator[str]:
    """A claim `shared-volume` on a folder of one node; returns the node."""
    node = namespace.cluster.schedulable_nodes()[0]
    with new_namespace(namespace.cluster, "privileged") as helper:
        name = helper.name

        def on_the_node(pod, command):
            mount = {
                "volumeMounts": [{"name": "host", "mountPath": "/host"}],
                "securityContext": {"runAsUser": 0},
            }
            volumes = [{"name": "host", "hostPath": {"path": "/var/lib"}}]
            start_pod(
                helper,
                pod,
                ["sh", "-c", command],
                mount,
                nodeName=node,
                volumes=volumes,
                securityContext={},
            )
            helper.kubectl(
                "wait", f"pod/{pod}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=90s"
            )

        on_the_node("make", f"mkdir -m 777 /host/{name}")
        namespace.cluster.kubectl(
            "apply", "-f", "-", input=VOLUME.format(name=name, namespace=namespace.name)
        )
        yield node
        namespace.kubectl("delete", "pods", "--all", "--wait=false")
        namespace.cluster.kubectl("delete", "pv", name, "--wait=false")
        on_the_node("remove", f"rm -rf /host/{name}")


def on(node: str) -> tuple[str, ...]:
    return ("--set", f"nodeSelector.kubernetes\\.io/hostname={node}")


@pytest.mark.row("7.1", "Shared Volume")
def test_a_shared_volume(namespace, shared_volume):
    """Writer and reader mount one claim; the reader sees the writer's file. Each pod of several
    nodes needs a claim that is ReadWriteMany.
    """
    launch(namespace, "k8s_shared_volume_test.yaml", *on(shared_volume))
    all_succeed(namespace, "writer-0", "reader-0")
    assert "File written" in output(namespace, "writer-0")
    assert "Hello from writer at" in output(namespace, "reader-0")


SPREAD = """\
---
name: near
placement: SAME_INFRA
execution: parallel
---
name: a
num_nodes: 2
resources: {cpus: 0.1}
run: echo "$NODE_NAME"
---
name: b
num_nodes: 2
resources: {cpus: 0.1}
run: echo "$NODE_NAME"
"""


def test_placement_keeps_the_group_in_one_domain(namespace):
    """Every node is its own zone, and the whole group runs in one."""
    label = f"zone-{namespace.name}"
    with racks(namespace.cluster, label):
        launch(namespace, SPREAD, "--set", f"placement.topologyKey={label}")
        pods = namespace.wait_for_end("grp", ranks=4)
    assert len({pod["spec"]["nodeName"] for pod in by_host(pods).values()}) == 1
