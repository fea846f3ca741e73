"""podTemplate: what Kubernetes has for a pod and the charts have no value for, in all charts alike."""

import pytest
import yaml

from hack.gen import pod_schema
from tests.helpers.rendering import (
    each_chart,
    each_helm,
    pod_templates,
    refusal,
    render,
    task,
)

MAIN = {"ddp-run": "trainer", "gpu-accept": "report", "job-group": "task"}
INIT = {"gpu-accept": "accept", "job-group": "agent"}
SPEC = yaml.safe_load("""
runtimeClassName: nvidia
priorityClassName: high
schedulerName: volcano
serviceAccountName: trainer
automountServiceAccountToken: true
volumes: [{name: models, persistentVolumeClaim: {claimName: models, readOnly: true}}]
initContainers: [{name: shipper, image: x, restartPolicy: Always}]
containers: [{env: [{name: WANDB_API_KEY, valueFrom: {secretKeyRef: {name: wandb, key: key}}}],
  envFrom: [{secretRef: {name: s3}}], resources: {requests: {cpu: '1'}, limits: {cpu: '1'}},
  volumeMounts: [{name: models, mountPath: /m, readOnly: true}]}]
""")


def values(chart: str, own: dict) -> dict:
    if chart == "job-group":
        return task(podTemplate=own)
    program = {"program": {"image": "mine", "args": ["train.py"]}} if chart == "ddp-run" else {}
    return {"podTemplate": own, **program}


def pod(chart: str, own: dict, helm: str = "helm") -> dict:
    """The pod template with the chart's main container."""
    found = pod_templates(render(chart, values(chart, own), helm=helm))
    (only,) = [each for each in found if each["spec"]["containers"][0]["name"] == MAIN[chart]]
    return only


@each_helm
@each_chart
def test_what_a_pod_template_sets_is_in_the_pod(chart, helm):
    spec = pod(
        chart,
        {"spec": SPEC, "metadata": {"labels": {"team": "a"}, "annotations": {"b": "c"}}},
        helm,
    )
    assert spec["metadata"]["labels"]["team"] == "a" and spec["metadata"]["annotations"]["b"] == "c"
    spec = spec["spec"]
    for field, value in SPEC.items():
        assert isinstance(value, list) or spec[field] == value, field
    assert SPEC["volumes"][0] in spec["volumes"]
    names = [each["name"] for each in spec["initContainers"]]
    assert names[0] == INIT.get(chart, "shipper") and names[-1] == "shipper"
    (main,) = spec["containers"]
    own = SPEC["containers"][0]
    assert main["envFrom"] == own["envFrom"] and own["env"][0] in main.get("env", [])
    assert (
        main["resources"] == own["resources"]
        if chart == "ddp-run"
        else main["resources"]["limits"] == {"cpu": "1"}
    )
    assert own["volumeMounts"][0] in main["volumeMounts"]


@pytest.mark.parametrize("chart", INIT)
def test_an_init_container_of_the_chart_takes_the_fields_of_its_name(chart):
    limits = {"limits": {"cpu": "2"}}
    before = [each["name"] for each in pod(chart, {})["spec"]["initContainers"]]
    after = pod(chart, {"spec": {"initContainers": [{"name": INIT[chart], "resources": limits}]}})[
        "spec"
    ]["initContainers"]
    assert [each["name"] for each in after] == before
    assert after[0]["resources"]["limits"]["cpu"] == "2" and after[0]["image"]


REFUSED = yaml.safe_load("""
restartPolicy: [{restartPolicy: Always}, /spec/restartPolicy]
a deadline: [{activeDeadlineSeconds: 60}, /spec/activeDeadlineSeconds]
command: [{containers: [{command: [x]}]}, 'spec.containers[0].command: ']
a second container: [{containers: [{}, {name: x}]}, /spec/containers]
a reserved variable: [{containers: [{env: [{name: POD_NAME, value: x}]}]}, '.env.POD_NAME: ']
gpus: [{containers: [{resources: {limits: {nvidia.com/gpu: 1}}}]}, 'resources.limits: ']
a volume of the chart: [{volumes: [{name: programs}]}, 'spec.volumes: ']
""")


@pytest.mark.parametrize("case", REFUSED)
@each_chart
def test_what_the_chart_decides_is_refused_by_its_path(chart, case):
    spec, path = REFUSED[case]
    message = refusal(chart, values(chart, {"spec": spec}))
    assert "podTemplate" in message and path in message, message


def test_the_grace_period_of_a_run_is_a_value_of_the_chart():
    message = refusal("ddp-run", values("ddp-run", {"spec": {"terminationGracePeriodSeconds": 5}}))
    assert "/spec/terminationGracePeriodSeconds" in message


# A list of a pod, and an entry that the user adds.
ENTRIES = {
    "env": {"name": "NEW", "value": "x"},
    "ports": {"containerPort": 7777},
    "volumeMounts": {"name": "new", "mountPath": "/new"},
}


@pytest.mark.parametrize("field", ENTRIES)
@each_chart
def test_an_entry_with_the_keys_of_a_charts_entry_replaces_it(chart, field):
    """By the keys of Kubernetes' OpenAPI file, so that server-side apply finds no two."""
    keys = pod_schema.merge_keys()[field]
    before = pod(chart, {})["spec"]["containers"][0].get(field, [])
    free = [
        each for each in before if field != "env" or each["name"] == "USER"
    ]  # others are the chart's alone
    for ours in [*free[:1], ENTRIES[field]]:
        mine = {
            "protocol": "TCP",
            **ENTRIES[field],
            **{key: ours[key] for key in keys if key in ours},
        }
        mine = mine if field == "ports" else {key: mine[key] for key in mine if key != "protocol"}
        after = pod(chart, {"spec": {"containers": [{field: [mine]}]}})["spec"]["containers"][0][
            field
        ]
        ids = [tuple(each.get(key, "TCP") for key in keys) for each in after]
        assert len(ids) == len(set(ids)) and mine in after
