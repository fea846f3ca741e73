"""Dynamic resource allocation: claims of a pod get devices on the pod's node. Scheduler and claims
are real.

The devices are those of hand-made ResourceSlices on simulated nodes: no driver prepares them.
"""

import json
import uuid
from collections.abc import Iterator

import pytest

from tests.helpers.kube import Namespace, wait_until
from tests.helpers.rendering import claimed
from tests.scale.test_scale import ON_FAKE_NODES, bound, until_bound
from tests.scale.test_scale import space as space  # a fixture

RANKS, GPUS, WITH_DEVICES = 4, 8, 6
JOB = {"workload": "job"}
CHARTS = {
    "Job of ddp-run": ("ddp-run", {}),
    "JobSet of ddp-run": ("ddp-run", {"workload": "jobset"}),
    "Job of gpu-accept": ("gpu-accept", JOB),
    "JobSet of job-group": ("job-group", {}),
    "Jobs of job-group": ("job-group", {"workload": "jobs"}),
}


DEVICE_CLASS = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: DRIVER, labels: {driver: DRIVER}}
spec: {selectors: [{cel: {expression: device.driver == "DRIVER"}}]}
"""
# With the devices of a node.
SLICE = """\
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: NODE-DRIVER, labels: {driver: DRIVER}}
spec:
  driver: DRIVER
  nodeName: NODE
  pool: {name: NODE, generation: 1, resourceSliceCount: 1}
  devices: [DEVICES]
"""
CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpus}
spec: {spec: {devices: {requests: [{name: gpus, exactly: {deviceClassName: DRIVER, count: COUNT}}]}}}
"""


@pytest.fixture
def driver(cluster, space, nodes) -> Iterator[str]:
    """A driver with GPUS devices on WITH_DEVICES nodes, and a template of claims for all devices of
    a node.
    """
    name = f"gpu-{uuid.uuid4().hex[:8]}.example.com"
    devices = ", ".join(f"{{name: gpu-{number}}}" for number in range(GPUS))
    slices = [
        SLICE.replace("NODE", node).replace("DEVICES", devices) for node in nodes[:WITH_DEVICES]
    ]
    cluster.kubectl(
        "apply", "-f", "-", input="".join([DEVICE_CLASS, *slices]).replace("DRIVER", name)
    )
    claim_all(space, name, GPUS)
    yield name
    cluster.kubectl("delete", "resourceslices,deviceclasses", "--selector", f"driver={name}")


def claim_all(space: Namespace, driver: str, count: int):
    space.apply(CLAIM.replace("DRIVER", driver).replace("COUNT", str(count)))


def install(space: Namespace, chart: str, values: dict):
    values = claimed(chart, nodes=RANKS) | values | ON_FAKE_NODES
    space.install("run", chart, values=json.dumps(values))


def devices_by_pod(space: Namespace) -> dict[str, set[tuple[str, str]]]:
    """Name of a pod -> (node, device) of each device that its claim got."""
    found = {}
    for claim in space.objects("resourceclaims.v1.resource.k8s.io"):
        (owner,) = [user["name"] for user in claim["status"]["reservedFor"]]
        results = claim["status"]["allocation"]["devices"]["results"]
        found[owner] = {(each["pool"], each["device"]) for each in results}
    return found


@pytest.mark.parametrize("case", CHARTS)
def test_every_pod_gets_the_devices_of_its_node(space, driver, case):
    install(space, *CHARTS[case])
    until_bound(space, RANKS, 120)
    nodes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in space.objects("pods")}
    expected = {
        pod: {(node, f"gpu-{number}") for number in range(GPUS)} for pod, node in nodes.items()
    }
    assert devices_by_pod(space) == expected
    assert len(set(nodes.values())) == RANKS, "no device is given away twice"


def test_a_pod_whose_devices_no_node_has_gets_no_node(space, driver):
    space.kubectl("delete", "resourceclaimtemplate", "gpus")
    claim_all(space, driver, GPUS + 1)
    install(space, "ddp-run", {})

    def refused():
        events = [each for each in space.objects("events") if each["reason"] == "FailedScheduling"]
        messages = [each["message"] for each in events]
        return [text for text in messages if "cannot allocate all claims" in text]

    wait_until(refused, "the scheduler has tried", 60)
    assert bound(space) == (RANKS, 0)
