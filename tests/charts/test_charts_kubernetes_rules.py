"""Values of Kubernetes' own fields that the API server refuses: the charts refuse them, too, at their place."""

from __future__ import annotations

import pytest

from tests.charts.test_charts_refuse import refusal, render, task

SELECTOR = {"key": "a", "operator": "In", "values": ["b"]}


def container(**fields: object) -> dict:
    return {"containers": [fields]}


def port(**fields: object) -> dict:
    return container(ports=[{"containerPort": 80, **fields}])


def variable(**source: object) -> dict:
    return container(env=[{"name": "A", "valueFrom": source}])


def nodes(**fields: object) -> dict:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{**SELECTOR, **fields}]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def preferred(weight: int) -> dict:
    term = {"weight": weight, "preference": {"matchExpressions": [SELECTOR]}}
    return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}}


def spread(**fields: object) -> dict:
    whole = {"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule", **fields}
    return {"topologySpreadConstraints": [whole]}


def toleration(**fields: object) -> dict:
    return {"tolerations": [{"key": "a", **fields}]}


# Part of a PodSpec that is right, a wrong one, and where in it the wrong value is.
SPECS = {
    "policy of DNS": ({"dnsPolicy": "None"}, {"dnsPolicy": "none"}, "dnsPolicy"),
    "policy of preemption": ({"preemptionPolicy": "Never"}, {"preemptionPolicy": "no"}, "preemptionPolicy"),
    "pull policy": (
        container(imagePullPolicy="Always"),
        container(imagePullPolicy="Sometimes"),
        "containers/0/imagePullPolicy",
    ),
    "restarts of a sidecar": (
        {"initContainers": [{"name": "s", "image": "x", "restartPolicy": "Always"}]},
        {"initContainers": [{"name": "s", "image": "x", "restartPolicy": "always"}]},
        "initContainers/0/restartPolicy",
    ),
    "protocol": (port(protocol="UDP"), port(protocol="tcp"), "containers/0/ports/0/protocol"),
    "port": (port(), port(containerPort=70000), "containers/0/ports/0/containerPort"),
    "name of a port": (port(name="0-http-15"), port(name="sixteen-letters1"), "containers/0/ports/0/name"),
    "hyphens in a port": (port(name="a-b"), port(name="a--b"), "containers/0/ports/0/name"),
    "name of a variable": (
        container(env=[{"name": "a.B", "value": "x"}]),
        container(env=[{"name": "A=B", "value": "x"}]),
        "containers/0/env/0/name",
    ),
    "key of a selector": (nodes(key="a.b/c_d"), nodes(key="a b"), "nodeSelectorTerms/0/matchExpressions/0/key"),
    "key of a label": ({"nodeSelector": {"a.b/c": ""}}, {"nodeSelector": {"a/b/c": "d"}}, "nodeSelector"),
    "value of a label": ({"nodeSelector": {"a": "b.c"}}, {"nodeSelector": {"a": "b c"}}, "nodeSelector/a"),
    "topology": (spread(topologyKey="a.b/c"), spread(topologyKey="a:b"), "topologySpreadConstraints/0/topologyKey"),
    "port of a probe": (
        container(startupProbe={"tcpSocket": {"port": "http"}}),
        container(startupProbe={"tcpSocket": {"port": "8080"}}),
        "containers/0/startupProbe/tcpSocket/port",
    ),
    "operator of a toleration": (toleration(operator="Lt"), toleration(operator="exists"), "tolerations/0/operator"),
    "effect": (toleration(effect=""), toleration(effect="NoShedule"), "tolerations/0/effect"),
    "operator of a selector": (
        nodes(operator="NotIn"),
        nodes(operator="Equals"),
        "nodeSelectorTerms/0/matchExpressions/0/operator",
    ),
    "weight": (preferred(1), preferred(0), "preferredDuringSchedulingIgnoredDuringExecution/0/weight"),
    "what cannot be spread": (
        spread(whenUnsatisfiable="ScheduleAnyway"),
        spread(whenUnsatisfiable="Maybe"),
        "topologySpreadConstraints/0/whenUnsatisfiable",
    ),
    "skew": (spread(maxSkew=2), spread(maxSkew=0), "topologySpreadConstraints/0/maxSkew"),
    "field of the pod": (
        variable(fieldRef={"fieldPath": "metadata.labels['example.com/a']"}),
        variable(fieldRef={"fieldPath": "spec.foo"}),
        "containers/0/env/0/valueFrom/fieldRef/fieldPath",
    ),
    "resource of the container": (
        variable(resourceFieldRef={"resource": "limits.cpu"}),
        variable(resourceFieldRef={"resource": "limits.foo"}),
        "containers/0/env/0/valueFrom/resourceFieldRef/resource",
    ),
    "profile": (
        {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
        {"securityContext": {"seccompProfile": {"type": "runtime/default"}}},
        "securityContext/seccompProfile/type",
    ),
}
ADDRESS = {"ipBlock": {"cidr": "10.0.0.0/8"}}
# The same for a rule of a network policy.
RULES = {
    "port": ({"ports": [{"port": 443}]}, {"ports": [{"port": 99999}]}, "ports/0/port"),
    "name of a port": ({"ports": [{"port": "dns"}]}, {"ports": [{"port": "443"}]}, "ports/0/port"),
    "protocol": ({"ports": [{"protocol": "UDP"}]}, {"ports": [{"protocol": "tcp"}]}, "ports/0/protocol"),
    "end": (
        {"ports": [{"port": 1, "endPort": 65535}]},
        {"ports": [{"port": 1, "endPort": 65536}]},
        "ports/0/endPort",
    ),
    "address": ({"PEERS": [ADDRESS]}, {"PEERS": [{"ipBlock": {"cidr": "10.0.0.0"}}]}, "PEERS/0/ipBlock/cidr"),
    "address of IPv6": (
        {"PEERS": [{"ipBlock": {"cidr": "2001:db8::/32", "except": ["2001:db8:1::/48"]}}]},
        {"PEERS": [{"ipBlock": {"cidr": "::/0", "except": ["all"]}}]},
        "PEERS/0/ipBlock/except/0",
    ),
    "length of a prefix": (
        {"PEERS": [{"ipBlock": {"cidr": "fd00::/128"}}]},
        {"PEERS": [{"ipBlock": {"cidr": "fd00::/129"}}]},
        "PEERS/0/ipBlock/cidr",
    ),
    "label": (
        {"PEERS": [{"podSelector": {"matchLabels": {"a": "b"}}}]},
        {"PEERS": [{"podSelector": {"matchLabels": {"-a": "b"}}}]},
        "PEERS/0/podSelector/matchLabels",
    ),
    "operator": (
        {"PEERS": [{"podSelector": {"matchExpressions": [SELECTOR]}}]},
        {"PEERS": [{"podSelector": {"matchExpressions": [{**SELECTOR, "operator": "Is"}]}}]},
        "PEERS/0/podSelector/matchExpressions/0/operator",
    ),
}


def values(chart: str, spec: dict) -> dict:
    template = {"podTemplate": {"spec": spec}}
    return task(**template) if chart == "job-group" else template


@pytest.mark.parametrize("chart", ["ddp-run", "gpu-accept", "job-group"])
@pytest.mark.parametrize("case", SPECS)
def test_a_value_that_kubernetes_does_not_know_is_refused_at_its_place(case: str, chart: str) -> None:
    right, wrong, place = SPECS[case]
    assert render(chart, values(chart, right))
    assert f"{place}': " in refusal(chart, values(chart, wrong))


def policy(direction: str, rule: dict) -> dict:
    rules = {name.replace("PEERS", "from" if direction == "ingress" else "to"): part for name, part in rule.items()}
    return {"networkPolicy": {"restrictEgress": True, direction: [rules]}}


@pytest.mark.parametrize("direction", ["ingress", "egress"])
@pytest.mark.parametrize("case", RULES)
def test_a_rule_that_kubernetes_refuses_is_refused_at_its_place(case: str, direction: str) -> None:
    right, wrong, place = RULES[case]
    peers = "from" if direction == "ingress" else "to"
    assert render("ddp-run", policy(direction, right))
    message = refusal("ddp-run", policy(direction, wrong))
    assert f"at '/networkPolicy/{direction}/0/{place.replace('PEERS', peers)}': " in message
