"""Names and types of the fields that users hand to Kubernetes: python -m hack.gen.pod_schema.

Writes schemas/charts/kubernetes.json from the OpenAPI document of the Kubernetes that hack/go pins.
It is a file of its own, because `make generate` needs no Go modules. A PodSpec and its containers
require nothing: users write parts of them. The document has no rules for values, so RULES has those
that a schema can have, from pkg/apis/core/validation/validation.go and
pkg/apis/networking/validation/validation.go.
"""

from __future__ import annotations

import json
from pathlib import Path

from hack.deps.go_tools import source
from hack.paths import REPO, ToolError, main

TARGET = REPO / "schemas/charts/kubernetes.json"
ROOTS = {
    "api__v1": ("PodSpec", "Toleration", "PodSecurityContext", "SecurityContext"),
    "apis__networking.k8s.io__v1": ("NetworkPolicyIngressRule", "NetworkPolicyEgressRule"),
}
PREFIX = "#/components/schemas/"
KEYS = "x-kubernetes-list-map-keys"


def one_of(*values: str) -> dict:
    return {"enum": [*values]}


PORT = {"minimum": 1, "maximum": 65535}
PORT_NAME = {"pattern": "^([0-9]+-)*[0-9]*[a-z][a-z0-9]*(-[a-z0-9]+)*$", "maxLength": 15}
LABEL_KEY = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?$"
LABEL_VALUE = {"pattern": "^([A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?$"}
LABELS = {
    "patternProperties": {LABEL_KEY: {"type": "string", **LABEL_VALUE}},
    "additionalProperties": False,
}
PROTOCOL = one_of("TCP", "UDP", "SCTP")
OPERATOR = one_of("In", "NotIn", "Exists", "DoesNotExist")
PROFILE = one_of("RuntimeDefault", "Localhost", "Unconfined")
SPREAD = one_of("Honor", "Ignore")
WEIGHT = {"minimum": 1, "maximum": 100}
BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
PREFIX_LENGTH = "(12[0-8]|1[01][0-9]|[1-9]?[0-9])"  # of IPv6
CIDR = {
    "pattern": rf"^({BYTE}([.]{BYTE}){{3}}/(3[0-2]|[12]?[0-9])|[0-9a-fA-F]*:[0-9a-fA-F:.]*/{PREFIX_LENGTH})$"
}
FIELD = (
    r"^(metadata[.](name|namespace|uid|(labels|annotations)(\['[^']+'\])?)"
    r"|spec[.](nodeName|serviceAccountName)|status[.](hostIPs?|podIPs?))$"
)
# An empty text is one that Kubernetes takes as the default, or as every value.
RULES = {
    "AppArmorProfile": {"type": PROFILE},
    "Container": {
        "imagePullPolicy": one_of("", "Always", "IfNotPresent", "Never"),
        "restartPolicy": one_of("Always", "OnFailure", "Never"),
        "terminationMessagePolicy": one_of("", "File", "FallbackToLogsOnError"),
    },
    "ContainerPort": {
        "protocol": one_of("", *PROTOCOL["enum"]),
        "containerPort": PORT,
        "hostPort": {**PORT, "minimum": 0},
        "name": PORT_NAME,
    },
    "EnvVar": {
        "name": {"pattern": "^[ -<>-~]+$"}
    },  # ASCII without =, since 1.34; before only letters, digits and -_.
    "HTTPGetAction": {"scheme": one_of("", "HTTP", "HTTPS")},
    "HostPathVolumeSource": {
        "type": one_of(
            *(
                "",
                "DirectoryOrCreate",
                "Directory",
                "FileOrCreate",
                "File",
                "Socket",
                "CharDevice",
                "BlockDevice",
            )
        )
    },
    "IPBlock": {"cidr": CIDR, "except": {"items": {"type": "string", **CIDR}}},
    "LabelSelector": {"matchLabels": LABELS},
    "LabelSelectorRequirement": {"operator": OPERATOR, "key": {"pattern": LABEL_KEY}},
    "NetworkPolicyPort": {"protocol": PROTOCOL, "endPort": PORT},
    "NodeSelectorRequirement": {
        "operator": one_of(*OPERATOR["enum"], "Gt", "Lt"),
        "key": {"pattern": LABEL_KEY},
    },
    "ObjectFieldSelector": {"fieldPath": {"pattern": FIELD}},
    "PodAffinityTerm": {"topologyKey": {"pattern": LABEL_KEY}},
    "PodSecurityContext": {
        "fsGroupChangePolicy": one_of("OnRootMismatch", "Always"),
        "supplementalGroupsPolicy": one_of("Merge", "Strict"),
    },
    "PodSpec": {
        "nodeSelector": LABELS,
        "dnsPolicy": one_of("", "ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
        "preemptionPolicy": one_of("PreemptLowerPriority", "Never"),
        "restartPolicy": one_of("", "Always", "OnFailure", "Never"),
    },
    "PreferredSchedulingTerm": {"weight": WEIGHT},
    "ResourceFieldSelector": {
        "resource": {"pattern": "^(limits|requests)[.](cpu|memory|ephemeral-storage|hugepages-.+)$"}
    },
    "SeccompProfile": {"type": PROFILE},
    "Toleration": {
        "operator": one_of("", "Equal", "Exists", "Lt", "Gt"),
        "effect": one_of("", "NoSchedule", "PreferNoSchedule", "NoExecute"),
    },
    "TopologySpreadConstraint": {
        "topologyKey": {"pattern": LABEL_KEY},
        "maxSkew": {"minimum": 1},
        "minDomains": {"minimum": 1},
        "nodeAffinityPolicy": SPREAD,
        "nodeTaintsPolicy": SPREAD,
        "whenUnsatisfiable": one_of("DoNotSchedule", "ScheduleAnyway"),
    },
    "VolumeMount": {"mountPropagation": one_of("None", "HostToContainer", "Bidirectional")},
    "WeightedPodAffinityTerm": {"weight": WEIGHT},
}
# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity; no amount of a
# pod is negative.
QUANTITY = {
    "type": ["string", "number"],
    "pattern": r"^[+]?([0-9]+([.][0-9]*)?|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$",
    "minimum": 0,
}
# The only numbers or texts of these objects are ports.
NUMBER_OR_NAME = {
    "anyOf": [
        {"type": "integer", **PORT},
        {"type": "string", **PORT_NAME},
    ]
}


def text() -> str:
    found: dict[str, dict] = {}
    folder = Path(source("kubernetes", "k8s.io/kubernetes")["Dir"]) / "api/openapi-spec/v3"
    for document, roots in ROOTS.items():
        schemas = json.loads((folder / f"{document}_openapi.json").read_text())["components"][
            "schemas"
        ]
        left = [name for name in schemas if name.rpartition(".")[2] in roots]
        while left:
            name = left.pop()
            short = name.rpartition(".")[2]
            if short not in found:
                found[short] = small(schemas[name], left)
                for field, rule in RULES.get(short, {}).items():
                    found[short]["properties"][field].update(rule)
    lines = [f"{json.dumps(name)}: {json.dumps(schema)}" for name, schema in sorted(found.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def small(schema: dict, left: list[str]) -> dict:
    """A schema without descriptions, defaults and requirements; `left` gains the names that it
    refers to.
    """
    for part in schema.get("allOf", []):
        return small(part, left)
    if reference := schema.get("$ref", "").removeprefix(PREFIX):
        left.append(reference)
        return {"$ref": f"#/definitions/{reference.rpartition('.')[2]}"}
    if "properties" in schema:
        fields = {name: small(field, left) for name, field in schema["properties"].items()}
        required = (
            {}
            if "containers" in fields or "stdin" in fields
            else {"required": schema.get("required", [])}
        )
        return {"type": "object", "additionalProperties": False, "properties": fields, **required}
    if schema.get("format") == "int-or-string":
        return NUMBER_OR_NAME
    if "type" not in schema:  # a quantity: text or a number
        return QUANTITY
    kept = {"type": schema["type"]}
    for below in ("items", "additionalProperties"):
        if isinstance(schema.get(below), dict):
            kept[below] = small(schema[below], left)
    if keys := schema.get(KEYS):  # by which Kubernetes tells entries of the list apart
        kept[KEYS] = keys
    return kept


def merge_keys() -> dict[str, list[str]]:
    """Lists of a pod whose entries have keys, by the name of the list."""
    found: dict[str, list[str]] = {}
    for schema in json.loads(TARGET.read_text()).values():
        for name, field in schema.get("properties", {}).items():
            if KEYS in field and found.setdefault(name, field[KEYS]) != field[KEYS]:
                raise ToolError(f"two lists are called {name}, with other keys")
    return found


if __name__ == "__main__":
    main(lambda: TARGET.write_text(text()))
