"""`podSecurity` of job-group refuses pods that ask for more than its level, before the API server could."""

from __future__ import annotations

import json

import pytest

from tests.helpers.rendering import template

LOOSENED = {
    "hostNetwork": True,
    "hostPID": True,
    "hostIPC": True,
    "volumes": [{"name": "root", "hostPath": {"path": "/"}}, {"name": "x", "nfs": {"server": "s", "path": "/"}}],
    "securityContext": {
        "runAsUser": 0,
        "runAsNonRoot": False,
        "sysctls": [{"name": "kernel.msgmax", "value": "1"}, {"name": "net.ipv4.tcp_syncookies", "value": "1"}],
        "windowsOptions": {"hostProcess": True},
    },
    "containers": [
        {
            "ports": [{"containerPort": 1, "hostPort": 1}],
            "readinessProbe": {"tcpSocket": {"port": 1, "host": "10.0.0.1"}},
            "lifecycle": {"preStop": {"httpGet": {"port": 1, "host": "10.0.0.1"}}},
            "securityContext": {
                "procMount": "Unmasked",
                "seccompProfile": {"type": "Unconfined"},
                "appArmorProfile": {"type": "Unconfined"},
                "seLinuxOptions": {"type": "spc_t"},
                "capabilities": {"add": ["SYS_ADMIN", "CHOWN", "NET_BIND_SERVICE"]},
                "runAsNonRoot": False,
            },
        }
    ],
    "initContainers": [
        {
            "name": "up",
            "image": "x",
            "securityContext": {"privileged": True, "runAsUser": 0, "seccompProfile": {"type": "Localhost"}},
        }
    ],
}
BASELINE = {
    *("hostNetwork", "hostPID", "hostIPC", "volume root: hostPath", "sysctl kernel.msgmax", "the pod: hostProcess"),
    *(f"container task: {field}" for field in ("hostPort", "tcpSocket.host", "httpGet.host", "procMount")),
    *(f"container task: {field}" for field in ("seccompProfile", "appArmorProfile", "seLinuxOptions")),
    *("container task: capability SYS_ADMIN", "container up: privileged"),
}
RESTRICTED = {
    *("volume root: hostPath", "volume x: nfs", "the pod: runAsUser is 0", "container up: runAsUser is 0"),
    *("container task: capability CHOWN", "container task: capability SYS_ADMIN"),
    *(f"container {name}: runAsNonRoot is not true" for name in ("task", "agent", "up")),
    "container task: no seccompProfile",
    *("container up: allowPrivilegeEscalation is not false", "container up: capabilities are not dropped"),
}


def rendered(level: str, spec: dict, *options: str, **values: object) -> str:
    """The refusal, or nothing."""
    task = {"run": "true", "podTemplate": {"spec": spec}}
    group = {"schemaVersion": 1, "name": "rl", "tasks": {"t": task}, "podSecurity": {"level": level}, **values}
    done = template("helm", "job-group", json.dumps(group).encode(), *options)
    return done.stderr.decode() if done.returncode else ""


def test_every_loosened_field_is_named_by_the_level_that_forbids_it() -> None:
    assert not rendered("privileged", LOOSENED)
    for level, forbidden in (("baseline", BASELINE), ("restricted", BASELINE | RESTRICTED)):
        refused = rendered(level, LOOSENED)
        assert "tasks.t: " in refused
        assert {*refused.split(f"Standard {level}: ")[1].split(".\n")[0].split("; ")} == forbidden


@pytest.mark.parametrize(
    ("level", "spec"),
    [
        ("baseline", {"hostPID": True}),
        ("restricted", {"containers": [{"securityContext": {"runAsNonRoot": False}}]}),
    ],
)
def test_one_field_is_enough(level: str, spec: dict) -> None:
    assert f"Standard {level}: " in rendered(level, spec)


def test_the_pods_of_the_chart_fit_every_level() -> None:
    for layout in ("jobset", "jobs"):
        assert not rendered("restricted", {}, layout=layout, logs={"claimName": "logs"})


def test_security_contexts_of_the_values_count_too() -> None:
    assert not rendered("baseline", {}, "--set", "containerSecurityContext.capabilities=null")
    assert "capabilities are not dropped" in rendered(
        "restricted", {}, "--set", "containerSecurityContext.capabilities=null"
    )
    assert "no seccompProfile" in rendered("restricted", {}, "--set", "podSecurityContext.seccompProfile=null")


@pytest.mark.parametrize(
    "spec",
    [
        {"serviceAccountName": "admin"},
        {"automountServiceAccountToken": True},
        {"volumes": [{"name": "x", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]},
    ],
)
def test_access_to_the_api_is_refused_where_it_is_forbidden(spec: dict) -> None:
    forbid = ("--set", "podSecurity.serviceAccount=false")
    assert not rendered("restricted", spec)
    assert "podSecurity:\n  serviceAccount: true" in rendered("privileged", spec, *forbid)
    assert not rendered("restricted", {}, *forbid)
