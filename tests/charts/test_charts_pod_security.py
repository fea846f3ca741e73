"""Every rendered pod fulfils the `restricted` Pod Security Standard.

One Helm is enough here: test_charts_render.py shows that the other one renders the same objects.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.rendering import Scenario, objects, pod_templates, rendered, scenarios

VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("image", "persistentVolumeClaim", "projected", "secret"),
}


def pods(scenario: Scenario) -> list[dict]:
    found = [template["spec"] for template in pod_templates(objects(rendered("helm", scenario)))]
    assert found, "no pod"
    return found


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
    found = pods(scenario)
    assert [broken for pod in found for broken in violations(pod)] == []


@pytest.mark.parametrize("scenario", scenarios(), ids=str)
def test_pods_get_no_token_of_the_api_server(scenario: Scenario) -> None:
    found = pods(scenario)
    tokens = [pod.get("automountServiceAccountToken") for pod in found]
    assert tokens == [pod.get("serviceAccountName") == "test-gpu-accept-fleet" for pod in found]  # of fleet.listPods
