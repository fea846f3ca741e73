"""ddp-run with real pods: a fault before the world is formed ends all of them with one verdict."""

import json
import time

import pytest

from tests.helpers.ddp_pods import (
    assert_ends,
    assert_verdict,
    assert_why,
    install,
    job_ends,
    logs_by_node,
    node_pod,
    node_pods,
    pod_name,
    start,
    wait_for_ends,
)
from tests.helpers.kube import Namespace, wait_until

pytestmark = pytest.mark.matrix
ON_NODE_1 = '[ "$NODE_RANK" != 1 ] || '
LISTEN = (
    "import socket, time\ns = socket.create_server(('', 29501))\nkept = []\n"
    "while True:\n    c = s.accept()[0]\n    "
)
# Fault -> shell before the launcher; code, cause and facts of the verdict.
FAULTS = {
    "the name does not resolve": (
        "export MASTER_ADDR=nobody.invalid", 64, "name-not-resolved", "nobody.invalid",
    ),
    "the name is that of a Service": (
        "export MASTER_ADDR=kubernetes.default.svc", 64, "wrong-address", "kubernetes.default.svc",
    ),
    "another number of nodes": (ON_NODE_1 + "export NNODES=3", 67, "nodes-differ", "nnodes: node 1"),
    "another number of processes": (
        ON_NODE_1 + "export NPROC_PER_NODE=2", 67, "nodes-differ", "nproc_per_node: node 1",
    ),
    "another image": (ON_NODE_1 + "export GPU_CHARTS_IMAGE=other", 67, "nodes-differ", "image: node 1"),
    "fewer GPUs": (ON_NODE_1 + "export NUM_GPUS_PER_NODE=1", 67, "node-unfit", "node 1"),
    "another torch": (
        ON_NODE_1 + "{ mkdir -p /tmp/x/torch; touch /tmp/x/torch/__init__.py; "
        "echo \"__version__ = '1.0'\" > /tmp/x/torch/version.py; export PYTHONPATH=/tmp/x; }",
        67, "nodes-differ", "torch: node 1",
    ),
    "a wrong interface": (ON_NODE_1 + "export GLOO_SOCKET_IFNAME=eth99", 68, "interface-not-found", "node 1", "eth99"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_node_at_fault_is_named(namespace, fault):
    before, code, cause, *words = FAULTS[fault]
    start(namespace, before=before)
    if (
        cause == "wrong-address"
    ):  # only node 0 can detect it; the other nodes get no answer from that address
        assert_verdict({0: wait_for_ends(namespace, 0, 1)[0]}, code, cause, *words)
    else:
        words = [word for word in words if word != "node 1" or cause != "interface-not-found"]
        assert_verdict(wait_for_ends(namespace, 0, 1), code, cause, *words)
    assert_why(namespace, cause, *words)
    assert job_ends(namespace, 60) == "Failed"


# Service on node 0's port in place of the launcher -> its command and the cause.
FOREIGN_SERVICES = {
    "nothing": ("sleep 600", "connection-refused"),
    "an HTTP server": ("exec python3 -m http.server 29501", "foreign-service"),
    "a service that sends nothing": (f"exec python3 -c \"{LISTEN}kept.append(c)\"", "no-response"),
    "a proxy without its target": (f"exec python3 -c \"{LISTEN}c.close()\"", "connection-closed"),
}  # fmt: skip


@pytest.mark.parametrize("service", FOREIGN_SERVICES)
def test_a_foreign_service_on_the_port_of_node_0_is_classified(namespace, service):
    command, cause = FOREIGN_SERVICES[service]
    start(namespace, before=f'[ "$NODE_RANK" != 0 ] || {{ {command}; }}')
    assert_ends(namespace, (1,), 65, cause, "node 0 at run-ddp-run-")


def test_a_pending_node_0_has_no_name(namespace):
    start(namespace, change=wait_for_admission)
    admit(namespace, 1)
    assert_ends(namespace, (1,), 64, "name-not-resolved", "run-ddp-run-")


def test_node_0_may_be_pending_for_a_while(namespace):
    """Its name resolves late, and its port is closed for some more time."""
    start(namespace, "--set", "timeouts.joinSeconds=120", change=wait_for_admission)
    admit(namespace, 1)
    wait_until(
        lambda: "attempt=0 " in logs_by_node(namespace).get(1, ""),
        "node 1 resolves the name of node 0",
        60,
    )
    time.sleep(10)  # so long the name does not resolve
    admit(namespace, 0)
    assert job_ends(namespace) == "Complete"


def wait_for_admission(pod: dict, container: dict):
    pod["schedulingGates"] = [{"name": "example.com/test"}]


def admit(space: Namespace, number: int):
    patch = json.dumps([{"op": "remove", "path": "/spec/schedulingGates"}])
    space.kubectl("patch", "pod", pod_name(space, number), "--type=json", f"--patch={patch}")


def test_a_missing_image_of_node_0_is_connection_refused(namespace):
    def no_image(pod, container):
        container["image"] = "localhost/absent:1"

    start(namespace, change=no_image)
    namespace.kubectl(
        "set", "image", f"pod/{pod_name(namespace, 1)}", f"trainer={namespace.cluster.image}"
    )
    assert_verdict(
        wait_for_ends(namespace, 1),
        65,
        "connection-refused",
        "node 0 at run-ddp-run-",
        "image not pulled",
    )
    assert_why(namespace, "connection-refused", "image not pulled", "localhost/absent:1")


def test_a_node_rank_beyond_nnodes_is_a_usage_error(namespace):
    start(namespace, "--set", "nodes=3", before="export NNODES=2")
    assert_ends(namespace, (2,), 2, "usage", "NODE_RANK=2")


def test_two_pods_with_one_index_are_duplicate_nodes(namespace):
    """The second pod is not one of the Job's."""
    start(namespace, "--set", "nodes=3", change=wait_for_admission)
    admit(namespace, 0)
    admit(namespace, 1)
    pod = node_pod(namespace, 1)
    spec = {
        key: value
        for key, value in pod["spec"].items()
        if key not in ("nodeName", "schedulingGates")
    }
    own = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"}
    own.add("ddp-run/id")  # else it waits for the end of this run
    about = {
        "name": "left-over",
        "labels": {key: value for key, value in pod["metadata"]["labels"].items() if key in own},
        "annotations": pod["metadata"]["annotations"],
    }
    copy = {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}
    namespace.apply(json.dumps(copy))
    assert_ends(namespace, (0, 1), 67, "duplicate-node", "left-over")


def test_an_unschedulable_node_is_named(namespace):
    room = len(namespace.cluster.schedulable_nodes())
    settings = ["--set", f"nodes={room + 1}", "--set", "placement.onePodPerNode=required"]
    start(namespace, *settings, change=wait_for_admission)
    for number in range(room):
        admit(namespace, number)
    wait_until(
        lambda: all("nodeName" in node_pod(namespace, number)["spec"] for number in range(room)),
        "the other pods are scheduled",
        30,
    )
    admit(namespace, room)
    assert_ends(namespace, range(room), 66, "node-missing", f"node {room} ")


def test_too_little_shared_memory_is_the_cause(namespace):
    program = "open('/dev/shm/batch', 'wb').write(bytes(128 << 20))"
    start(namespace, "--set", "sharedMemory.sizeLimit=64Mi", program=program)
    assert_ends(namespace, (0, 1), 1, "shared-memory-full", "train.py:1")


def test_two_runs_in_the_host_network_wait_for_each_others_ports(namespace):
    """The second run is not scheduled until the first has ended, so they never connect."""
    level = "pod-security.kubernetes.io/enforce=privileged"
    namespace.kubectl("label", "namespace", namespace.name, level, "--overwrite")
    settings = ["--set", "podTemplate.spec.hostNetwork=true", "--set", "timeouts.joinSeconds=200"]
    start(namespace, *settings, before="until [ -e /tmp/go ]; do sleep 0.2; done")
    names = [pod_name(namespace, number) for number in range(2)]
    wait_until(
        lambda: [p for p in node_pods(namespace) if p["status"]["phase"] == "Running"][1:],
        "the first runs",
        60,
    )
    install(namespace, *settings, release="second")
    second = "app.kubernetes.io/instance=second"

    def refused():
        conditions = [
            c
            for pod in namespace.objects("pods", second)
            for c in pod["status"].get("conditions", [])
        ]
        return sum("free ports" in condition.get("message", "") for condition in conditions) == 2

    wait_until(refused, "both pods of the second wait for free ports", 60)
    for name in names:
        namespace.kubectl("exec", name, "--", "touch", "/tmp/go")
    for instance in ("run", "second"):
        job = f"--selector=app.kubernetes.io/instance={instance}"
        namespace.kubectl("wait", "job", job, "--for=condition=Complete", "--timeout=240s")
