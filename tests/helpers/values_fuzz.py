"""Random values of a chart: sets that fit its schema, and mutations of them."""

import copy
import functools
import operator
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

WORDS = Path(__file__).with_name("words.txt")
# Texts for every pattern of the schemas. A text without a pattern is drawn from all of them.
TEXTS = (
    *WORDS.read_text().split(),
    "é",
    "",
    "a b",
    "a: b",
    "# x",
    "{{ x }}",
    "- x",
    "a\nb",
    "\u0085",
    "x" * 70,
)
# Known names of values whose names the templates check.
NAMES = {"limits": "gemm_bf16", "expect": "driver"}
LABELS = ({}, {"pool": "gpu"}, {"example.com/pool": "a", "n": "null"})
# Objects of Kubernetes, which have rules that no schema has.
KUBERNETES = yaml.safe_load("""
EnvVarSource:
- {secretKeyRef: {name: s, key: k}}
- {fieldRef: {fieldPath: metadata.name}}
AnyObject:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: mine}, data: {'on': '{{ no }}'}}
PodSecurityContext:
- {}
- {runAsUser: 0}
- {runAsNonRoot: true, runAsUser: 1000}
- {fsGroup: 100, sysctls: []}
SecurityContext:
- {}
- {runAsUser: 0}
- {runAsNonRoot: true, runAsUser: 1000}
- {capabilities: {drop: [ALL], add: [SYS_PTRACE]}}
Toleration:
- {operator: Exists}
- {key: x, operator: Equal, value: 'null', effect: NoExecute}
NetworkPolicyIngressRule:
- {}
- {ports: [{port: 443}]}
- {ports: [{protocol: UDP, port: dns}]}
- {from: [{podSelector: {}}]}
NetworkPolicyEgressRule:
- {}
- {ports: [{port: 443}]}
- {ports: [{protocol: UDP, port: dns}]}
- {to: [{ipBlock: {cidr: 10.0.0.0/8}}]}
PodSpec:
- {}
- {priorityClassName: high}
- {runtimeClassName: nvidia, schedulerName: volcano}
- {serviceAccountName: trainer, automountServiceAccountToken: true}
- {volumes: [{name: nfs, nfs: {server: x, path: /}}], nodeSelector: {'on': 'null'}}
- {containers: [{env: [{name: 'ON', value: '1'}], envFrom: [{secretRef: {name: s}}]}]}
- {containers: [{name: main, resources: {limits: {cpu: 0.5}}, lifecycle: {}}]}
- {containers: [{readinessProbe: {tcpSocket: {port: 80}}}], terminationGracePeriodSeconds: 600}
- {containers: [{volumeMounts: [{name: tmp, mountPath: /mine, readOnly: true}]}]}
- {initContainers: [{name: copy, image: x, command: ['true']}]}
- {tolerations: [{operator: Exists}], topologySpreadConstraints: [], hostNetwork: true}
- {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {
  nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}}
""")


class Values:
    """Values that fit the schema `root`, drawn with `random`."""

    def __init__(self, root: dict, rng: random.Random):
        self.root, self.rng = root, rng

    def draw(self) -> dict:
        self.share = self.rng.choice([0.05, 0.15, 0.3])  # of the values that need not be set
        values = self.value(self.root)
        if "tasks" in values:  # of a group, which must have a name and a task
            values |= {
                "name": values["name"] or "rl",
                "tasks": values["tasks"] or {"t": {"run": "true"}},
            }
            if self.rng.random() < 0.8:
                mend(values)
        if self.root["properties"]["podTemplate"]["$ref"].endswith(
            "runTemplate"
        ):  # the chart has a value for it
            (values.get("podTemplate", {}).get("spec") or {}).pop(
                "terminationGracePeriodSeconds", None
            )
        for name, known in NAMES.items():
            if values.get(name) and self.rng.random() < 0.8:
                values[name] = {known: next(iter(values[name].values()))}
        return values

    def value(self, node: dict) -> Any:
        if "$ref" in node:
            name = node["$ref"].rpartition("/")[2]
            if name in KUBERNETES:
                return copy.deepcopy(self.rng.choice(KUBERNETES[name]))
            return self.value(self.root["definitions"][name])
        if "allOf" in node:
            return self.value(node["allOf"][0])
        if "const" in node:
            return node["const"]
        if "enum" in node:
            return self.rng.choice(node["enum"])
        if "anyOf" in node:
            return self.value(self.rng.choice(node["anyOf"]))
        kinds = node.get("type", "object")
        if "const" in node.get("then", {}):  # of the other type, which is a mistake
            kinds = kinds[0]
        kind = self.rng.choice(kinds) if isinstance(kinds, list) else kinds
        return getattr(self, kind)(node)

    def null(self, node: dict):
        return None

    def boolean(self, node: dict) -> bool:
        return self.rng.random() < 0.5

    def integer(self, node: dict) -> int:
        low, high = node.get("minimum", 0), node.get("maximum", 1_000_000)
        return self.rng.choice(
            [low, high, self.rng.randint(low, min(high, low + 8)), self.rng.randint(low, low + 2)]
        )

    def number(self, node: dict) -> float:
        return self.rng.choice([1, 8, 0.5, 2.25, 68719476736])

    def string(self, node: dict) -> str:
        fits = [text for text in TEXTS if fits_text(node, text)]
        assert fits, f"no text fits {node}"
        return self.rng.choice(fits)

    def array(self, node: dict) -> list:
        size = self.rng.choice([node.get("minItems", 0), 1, 2])
        items = [self.value(node["items"]) for _ in range(size)]
        if node.get("uniqueItems"):
            items = [item for index, item in enumerate(items) if item not in items[:index]]
        return items

    def object(self, node: dict) -> dict:
        own = {
            name: each
            for name, each in node.get("properties", {}).items()
            if not is_elsewhere(each)
        }
        needed = {
            *node.get("required", ()),
            *self.rng.choice(node.get("oneOf", [{}])).get("required", ()),
        }
        other = {name for each in node.get("oneOf", ()) for name in each["required"]} - needed
        if node is self.root:
            needed |= {"schemaVersion", "name", "tasks"} & set(own)
        names = [
            name
            for name in own
            if name in needed or (name not in other and self.rng.random() < self.share)
        ]
        found = {name: self.value(own[name]) for name in names}
        free = dict(node.get("patternProperties", {}))
        if isinstance(node.get("additionalProperties"), dict):
            free["."] = node["additionalProperties"]
        for pattern, rule in free.items():
            for _ in range(self.rng.choice([0, 1, 1, 2]) or (0 if own else 1)):
                found[self.string({"pattern": pattern})] = self.value(rule)
        if node.get("maxProperties") and len(found) > node["maxProperties"]:
            found = dict([self.rng.choice([*found.items()])])
        if node.get("minProperties") and not found:
            name = self.rng.choice([*own])
            found = {name: self.value(own[name])}
        return found


def is_elsewhere(node: dict) -> bool:
    """Whether a name is there to say where its value belongs."""
    return str(node.get("const", "")).startswith("did you mean ")


def mend(group: dict):
    """Let names refer to what exists, since random ones hardly ever do."""
    names, sets = sorted(group["tasks"]), sorted(group.get("files", {}))
    if "primaryTasks" in group:
        group["primaryTasks"] = names[:1]
    for index, task in enumerate(group["tasks"].values()):
        if "dependsOn" in task:
            task["dependsOn"] = (
                {names[0]: "started"} if names[0] not in [*group["tasks"]][index:] else {}
            )
        if "secrets" in task:
            group["secretName"] = "s"
            task["secrets"] = [name for name in task["secrets"] if name not in task.get("env", {})]
        if "volumes" in task:  # the check Job refuses two at one place
            task["volumes"] = [*{each["mountPath"]: each for each in task["volumes"]}.values()]
        mounts = {
            each["mountPath"]: {**each, "files": sets[0]}
            for each in task.pop("fileMounts", [])
            if sets
        }
        used = {each["mountPath"] for each in task.get("volumes", [])}
        task["fileMounts"] = [each for place, each in mounts.items() if place not in used]
        for each in task["fileMounts"]:
            each.pop("subPath", None)
        if "files" in task.get("workdir", {}):
            del task["workdir"]


def fits_text(node: dict, text: str) -> bool:
    short = node.get("minLength", 0) <= len(text) <= node.get("maxLength", 1000)
    barred = node.get("not", {}).get("pattern")
    matches = "pattern" not in node or re.search(node["pattern"], text) is not None
    return short and matches and not (barred and re.search(barred, text))


def places(node: Any, path: tuple = ()) -> list[tuple]:
    """Paths of everything below a value."""
    items = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    return [place for key, child in items for place in ((*path, key), *places(child, (*path, key)))]


def at(node: Any, path: Iterable) -> Any:
    """What such a path leads to."""
    return functools.reduce(operator.getitem, path, node)


def mutated(values: dict, rng: random.Random) -> dict:
    """A copy with one value replaced by one of another kind, removed, or with a misspelt key beside
    it.
    """
    copied = copy.deepcopy(values)
    paths = [
        path for path in places(copied) if path[0] != "extraObjects"
    ]  # which only Kubernetes can judge
    if not paths:
        return {"misspelt": 1}
    path = rng.choice(paths)
    parent = at(copied, path[:-1])
    way = rng.randrange(4)
    if way == 0 and isinstance(parent, dict):
        parent["misspelt"] = 1
    elif way == 1:
        del parent[path[-1]]
    else:
        parent[path[-1]] = rng.choice(
            [-1, 0.5, 10**10, "", "é ", True, [], {}, ["x"], {"x": "y"}, "0", rng.choice(TEXTS)]
        )
    return copied
