"""What pods of every chart have beside the program: claims, devices, ports, name servers and
sidecars.
"""

import pytest

from tests.helpers.rendering import (
    CLAIM,
    USES,
    claimed,
    containers,
    each_chart,
    pod_templates,
    refusal,
    render,
    task,
)

ETCD = {"launcher": "torchrun", "rendezvous": {"backend": "etcd", "etcd": {"deploy": True}}}


def pods(chart: str, values: dict) -> list[dict]:
    found = pod_templates(render(chart, values))
    assert found
    return found


@pytest.mark.parametrize("value", ["activeDeadlineSeconds", "ttlSecondsAfterFinished"])
@pytest.mark.parametrize(
    ("chart", "workload"), [("ddp-run", "statefulset"), ("gpu-accept", "daemonset")]
)
def test_what_never_ends_has_no_end(chart, workload, value):
    assert value in refusal(chart, {"workload": workload, value: 60})


@each_chart
def test_gpus_may_come_from_a_claim_alone(chart):
    """The program still knows their number."""
    found = containers(render(chart, claimed(chart)))
    (container,) = [each for each in found if "claims" in each.get("resources", {})]
    assert container["resources"] == USES["resources"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    known = {"ddp-run": "NUM_GPUS_PER_NODE", "job-group": "SKYPILOT_NUM_GPUS_PER_NODE"}
    assert "--gpus=8" in container.get("args", []) or env[known[chart]] == "8"


@each_chart
def test_gpus_that_come_from_nowhere_are_refused(chart):
    """Without a claim, and with one that another container uses."""
    other = {"initContainers": [{"name": "other", "image": "x", **USES}], "resourceClaims": [CLAIM]}
    for spec in {}, other:
        assert "resources.claims" in refusal(chart, claimed(chart, spec))


@each_chart
def test_a_mesh_puts_no_sidecar_into_any_pod_that_does_not_ask_for_one(chart):
    """A Job would not end, and an init container has no network before such a sidecar has started."""
    label, common = "sidecar.istio.io/inject", {"commonLabels": {"sidecar.istio.io/inject": "true"}}
    own = {"metadata": {"labels": {label: "true"}}}
    values = {"ddp-run": ETCD, "gpu-accept": {"workload": "job", "nodes": 2}, "job-group": task()}[
        chart
    ]
    asks = task(podTemplate=own) if chart == "job-group" else {"podTemplate": own}
    for given, wanted in ((values, "false"), (values | asks | common, "true")):
        assert {pod["metadata"]["labels"].get(label) for pod in pods(chart, given)} == {wanted}
