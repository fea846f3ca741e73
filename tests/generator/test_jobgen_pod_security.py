"""Fields of pod_config that loosen the chart's settings: a note for each, and an error with --strict."""

import pytest
import yaml

GROUP = "name: rl\nexecution: parallel\n---\nname: t\nconfig: {kubernetes: {pod_config: {spec: %s}}}\n"
CONTEXT = "containers[0].securityContext"


def container(**fields) -> dict:
    return {"containers": [fields]}


def context(**fields) -> dict:
    return container(securityContext=fields)


LOOSENED = [
    ({"hostPID": True}, ["hostPID"]),
    ({"hostIPC": True}, ["hostIPC"]),
    ({"serviceAccountName": "admin"}, ["serviceAccountName"]),
    ({"automountServiceAccountToken": True}, ["automountServiceAccountToken"]),
    ({"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}, ["volumes[0].hostPath"]),
    (
        {"volumes": [{"name": "a", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]},
        ["volumes[0].projected.sources[0].serviceAccountToken"],
    ),
    ({"securityContext": {"runAsUser": 0}}, ["securityContext.runAsUser"]),
    ({"securityContext": {"runAsNonRoot": False}}, ["securityContext.runAsNonRoot"]),
    ({"securityContext": {"sysctls": [{"name": "a", "value": "b"}]}}, ["securityContext.sysctls"]),
    ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, ["securityContext.seccompProfile"]),
    (
        context(privileged=True, allowPrivilegeEscalation=True),
        [f"{CONTEXT}.privileged", f"{CONTEXT}.allowPrivilegeEscalation"],
    ),
    (context(capabilities={"add": ["SYS_ADMIN"]}), [f"{CONTEXT}.capabilities.add"]),
    (context(capabilities={"drop": []}), [f"{CONTEXT}.capabilities.drop"]),
    (context(procMount="Unmasked"), [f"{CONTEXT}.procMount"]),
    (container(ports=[{"containerPort": 80, "hostPort": 80}]), ["containers[0].ports[0].hostPort"]),
]


@pytest.mark.parametrize(("spec", "paths"), LOOSENED, ids=lambda each: each[0] if isinstance(each, list) else "")
def test_each_loosened_field_is_noted_and_refused_by_strict(jobgen, spec, paths):
    group = GROUP % yaml.safe_dump(spec, default_flow_style=True, width=1000).strip()
    for options, severity, code in (((), "note", 0), (("--strict",), "error", 1)):
        result = jobgen("validate", *options, "-", stdin=group)
        assert result.exit_code == code, result.stderr
        found = [line for line in result.stderr.splitlines() if line.endswith("[loosened-pod]")]
        expected = [f'{severity}: task "t": $.config.kubernetes.pod_config.spec.{path}: ' for path in paths]
        assert len(found) == len(expected)
        assert all(any(each in line for line in found) for each in expected), found


@pytest.mark.parametrize(
    "spec",
    [
        {"hostPID": False, "automountServiceAccountToken": False, "hostUsers": False},
        {"securityContext": {"runAsUser": 1000, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}},
        {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "c"}}]},
        context(capabilities={"drop": ["ALL"]}, procMount="Default", allowPrivilegeEscalation=False),
        container(ports=[{"containerPort": 80}]),
    ],
)
def test_what_does_not_loosen_is_not_noted(jobgen, spec):
    group = GROUP % yaml.safe_dump(spec, default_flow_style=True, width=1000).strip()
    result = jobgen("validate", "--strict", "-", stdin=group)
    assert result.exit_code == 0 and "loosened-pod" not in result.stderr, result.stderr
