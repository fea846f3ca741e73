"""Every rendered pod fulfils the `restricted` Pod Security Standard.

One Helm is enough here: test_charts_render.py shows that the other one renders the same objects.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest

from tests.helpers.rendering import Scenario, objects, rendered, scenarios

VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("image", "persistentVolumeClaim", "projected", "secret"),
}


def pod_specs(node: object) -> Iterator[dict]:
    """Whatever holds containers is the spec of a pod, in any kind of object."""
    if isinstance(node, dict):
        if "containers" in node:
            yield node
        for value in node.values():
            yield from pod_specs(value)
    elif isinstance(node, list):
        for value in node:
            yield from pod_specs(value)


def violations(pod: dict) -> Iterator[str]:
    """Names of the standard's controls that the spec of a pod breaks."""
    of_pod = pod.get("securityContext") or {}
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(name):
            yield name
    for volume in pod.get("volumes") or []:
        if not (set(volume) - {"name"}) <= VOLUMES or set(volume) == {"name"}:
            yield "volume types"
    if of_pod.get("sysctls"):
        yield "sysctls"  # some are allowed; the charts need none
    for container in [*pod.get("initContainers", []), *pod["containers"], *pod.get("ephemeralContainers", [])]:
        own = container.get("securityContext") or {}
        both = {**of_pod, **own}
        capabilities = own.get("capabilities") or {}
        rules = {
            "privileged": not own.get("privileged"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "capabilities": "ALL" in capabilities.get("drop", [])
            and set(capabilities.get("add") or []) <= {"NET_BIND_SERVICE"},
            "runAsNonRoot": both.get("runAsNonRoot") is True,
            "runAsUser": both.get("runAsUser") != 0,
            "seccompProfile": (both.get("seccompProfile") or {}).get("type") in {"RuntimeDefault", "Localhost"},
            "seLinuxOptions": not both.get("seLinuxOptions"),
            "appArmorProfile": (both.get("appArmorProfile") or {"type": "RuntimeDefault"})["type"] != "Unconfined",
            "windowsOptions": not (both.get("windowsOptions") or {}).get("hostProcess"),
            "procMount": own.get("procMount", "Default") == "Default",
            "hostPort": not any(port.get("hostPort") for port in container.get("ports") or []),
        }
        yield from (f"{name} of {container['name']}" for name, kept in rules.items() if not kept)


@pytest.mark.parametrize("scenario", scenarios(), ids=str)
def test_pods_are_restricted(scenario: Scenario) -> None:
    found = list(pod_specs(objects(rendered("helm", scenario))))
    assert found, "no pod"
    assert [broken for pod in found for broken in violations(pod)] == []


@pytest.mark.parametrize("scenario", scenarios(), ids=str)
def test_pods_get_no_token_of_the_api_server(scenario: Scenario) -> None:
    found = list(pod_specs(objects(rendered("helm", scenario))))
    assert found, "no pod"
    tokens = [pod.get("automountServiceAccountToken") for pod in found]
    assert tokens == [pod.get("serviceAccountName") == "test-gpu-accept-fleet" for pod in found]  # of fleet.listPods


def init(pod: dict) -> dict:
    return pod["initContainers"][0]["securityContext"]


BREACHES: dict[str, Callable[[dict], object]] = {
    "hostNetwork": lambda pod: pod.update(hostNetwork=True),
    "hostPID": lambda pod: pod.update(hostPID=True),
    "hostIPC": lambda pod: pod.update(hostIPC=True),
    "volume types": lambda pod: pod["volumes"].append({"name": "root", "hostPath": {"path": "/"}}),
    "privileged": lambda pod: init(pod).update(privileged=True),
    "allowPrivilegeEscalation": lambda pod: init(pod).pop("allowPrivilegeEscalation"),
    "capabilities": lambda pod: init(pod)["capabilities"].update(add=["SYS_ADMIN"]),
    "runAsNonRoot": lambda pod: pod["securityContext"].pop("runAsNonRoot"),
    "runAsUser": lambda pod: init(pod).update(runAsUser=0),
    "seccompProfile": lambda pod: init(pod).update(seccompProfile={"type": "Unconfined"}),
    "procMount": lambda pod: init(pod).update(procMount="Unmasked"),
    "hostPort": lambda pod: pod["containers"][0].update(ports=[{"containerPort": 1, "hostPort": 1}]),
}


@pytest.mark.parametrize("control", BREACHES)
def test_the_check_finds_a_breach(control: str) -> None:
    groups = [each for each in scenarios() if each.chart == "job-group"]
    pods = (pod for each in groups for pod in pod_specs(objects(rendered("helm", each))) if "initContainers" in pod)
    pod = copy.deepcopy(next(pods))
    BREACHES[control](pod)
    assert {broken.split(" of ")[0] for broken in violations(pod)} == {control}
