"""What keeps pods away that are not of a release: a NetworkPolicy where it applies, and a key that signs messages."""

from __future__ import annotations

import functools
import json
import subprocess

import pytest

from gpuworker.runtime import contract
from tests.helpers.rendering import CHARTS, objects, pod_templates, template

TORCHRUN = {"numNodes": 2, "run": "torchrun x.py"}
GROUP = {"schemaVersion": 1, "name": "rl", "tasks": {"a": {"run": "true"}, "t": TORCHRUN}}
RUN = {"ddp-run": {}, "gpu-accept": {"workload": "job", "nodes": 2}, "job-group": GROUP}
ON_NODE = {"spec": {"hostNetwork": True}}
HOST_NETWORK = {
    "ddp-run": {"podTemplate": ON_NODE},
    "gpu-accept": {"podTemplate": ON_NODE},
    "job-group": {"tasks": {"a": {"run": "true"}, "t": {**TORCHRUN, "podTemplate": ON_NODE}}},
}
PATH = {"ddp-run": "podTemplate.spec.host", "gpu-accept": "podTemplate.spec.host", "job-group": "tasks.t.podTemplate"}
KEY = {"authentication": {"secretName": "my-key", "secretKey": "token"}}
SIGNS = {  # container -> whether it sends or receives messages that are signed, if it is of that task
    "ddp-run": {"trainer": True},
    "gpu-accept": {"accept": False, "report": True, "fleet": True, "verdict": False},
    "job-group": {"agent": True, "task a": False, "task t": True},
}


@functools.cache
def helm(chart: str, values: str) -> subprocess.CompletedProcess:
    return template("helm", chart, values.encode())


def rendered(chart: str, values: dict) -> list[dict]:
    done = helm(chart, json.dumps({**RUN[chart], **values}))
    assert done.returncode == 0, done.stderr.decode()
    return objects(done.stdout.decode())


def refused(chart: str, values: dict) -> str:
    done = helm(chart, json.dumps({**RUN[chart], **values}))
    assert done.returncode, done.stdout.decode()
    return done.stderr.decode()


def policies(chart: str, values: dict) -> list[dict]:
    return [item for item in rendered(chart, values) if item["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize("chart", CHARTS)
def test_only_the_pods_of_a_release_reach_it_by_default(chart: str) -> None:
    (policy,) = policies(chart, {})
    spec = policy["spec"]
    assert spec["policyTypes"] == ["Ingress"] and spec["podSelector"]["matchLabels"]
    assert spec["ingress"] == [{"from": [{"podSelector": spec["podSelector"]}]}]
    own = spec["podSelector"]["matchLabels"].items()
    pods = pod_templates(rendered(chart, {}))
    assert pods and all(own <= pod["metadata"]["labels"].items() for pod in pods)


@pytest.mark.parametrize("chart", CHARTS)
def test_there_is_no_policy_where_it_would_not_apply(chart: str) -> None:
    assert not policies(chart, HOST_NETWORK[chart])
    for policy in ({"restrictEgress": True}, {"ingress": [{"ports": [{"port": 80}]}]}):
        message = refused(chart, {**HOST_NETWORK[chart], "networkPolicy": policy})
        assert f"networkPolicy.{next(iter(policy))}: " in message and PATH[chart] in message


@pytest.mark.parametrize("chart", CHARTS)
def test_rules_without_a_policy_are_refused(chart: str) -> None:
    for name, value in (("restrictEgress", True), ("ingress", [{"ports": [{"port": 80}]}])):
        assert f"networkPolicy.{name}: " in refused(chart, {"networkPolicy": {"enabled": False, name: value}})
    assert not policies(chart, {"networkPolicy": {"enabled": False}})


def key_of(pod: dict, container: dict) -> tuple[str, list[dict]]:
    """The container's key file, and the volume that is mounted there."""
    env = {each["name"]: each.get("value") for each in container.get("env", [])}
    path = env.get(contract.KEY_FILE_VARIABLE, "")
    mounts = [each for each in container["volumeMounts"] if path and path.startswith(each["mountPath"] + "/")]
    return path, [each for each in pod["volumes"] if each["name"] in [mount["name"] for mount in mounts]]


@pytest.mark.parametrize("chart", CHARTS)
def test_the_key_reaches_every_process_that_signs_and_no_other(chart: str) -> None:
    seen = set()
    for pod in [each["spec"] for each in pod_templates(rendered(chart, KEY))]:
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            name = container["name"]
            if name == "task":
                name += f" {pod['hostname'][0]}"
            path, volumes = key_of(pod, container)
            seen.add(name)
            assert bool(path) == SIGNS[chart][name], name
            if path:
                (volume,) = volumes
                assert path == contract.KEY_FILE and volume["secret"]["secretName"] == "my-key"
                assert volume["secret"]["items"] == [{"key": "token", "path": path.rpartition("/")[2]}]
    assert seen == set(SIGNS[chart])


@pytest.mark.parametrize("chart", CHARTS)
def test_without_a_key_no_pod_has_one(chart: str) -> None:
    text = json.dumps(rendered(chart, {}))
    assert contract.KEY_FILE_VARIABLE not in text and contract.KEY_FILE not in text and '"secret":' not in text


@pytest.mark.parametrize("chart", CHARTS)
def test_another_secret_is_another_run(chart: str) -> None:
    """The pods of a Job cannot be changed, so they would keep the old key."""
    names = [
        {item["metadata"]["name"] for item in rendered(chart, values) if item["kind"] in ("Job", "JobSet")}
        for values in ({}, KEY)
    ]
    if chart == "gpu-accept":  # the test has one name
        names = [{name for name in each if not name.endswith("-test")} for each in names]
    assert names[0] and not names[0] & names[1]
