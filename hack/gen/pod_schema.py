"""Names and types of the fields that users hand to Kubernetes: python -m hack.gen.pod_schema.

Writes schemas/charts/kubernetes.json from the OpenAPI document of the Kubernetes that hack/go pins. It is a file of its
own, because `make generate` needs no Go modules. No value is checked, and a PodSpec and its containers
require nothing: users write parts of them.
"""

from __future__ import annotations

import json
from pathlib import Path

from hack.deps.go_tools import source
from hack.paths import REPO, main

TARGET = REPO / "schemas/charts/kubernetes.json"
ROOTS = {
    "api__v1": ("PodSpec", "Toleration", "PodSecurityContext", "SecurityContext"),
    "apis__networking.k8s.io__v1": ("NetworkPolicyIngressRule", "NetworkPolicyEgressRule"),
}
PREFIX = "#/components/schemas/"


def text() -> str:
    found: dict[str, dict] = {}
    folder = Path(source("kubernetes", "k8s.io/kubernetes")["Dir"]) / "api/openapi-spec/v3"
    for document, roots in ROOTS.items():
        schemas = json.loads((folder / f"{document}_openapi.json").read_text())["components"]["schemas"]
        left = [name for name in schemas if name.rpartition(".")[2] in roots]
        while left:
            name = left.pop()
            short = name.rpartition(".")[2]
            if short not in found:
                found[short] = small(schemas[name], left)
    lines = [f"{json.dumps(name)}: {json.dumps(schema)}" for name, schema in sorted(found.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def small(schema: dict, left: list[str]) -> dict:
    """A schema without descriptions, defaults and requirements; `left` gains the names that it refers to."""
    for part in schema.get("allOf", []):
        return small(part, left)
    if reference := schema.get("$ref", "").removeprefix(PREFIX):
        left.append(reference)
        return {"$ref": f"#/definitions/{reference.rpartition('.')[2]}"}
    if "properties" in schema:
        fields = {name: small(field, left) for name, field in schema["properties"].items()}
        required = {} if "containers" in fields or "stdin" in fields else {"required": schema.get("required", [])}
        return {"type": "object", "additionalProperties": False, "properties": fields, **required}
    if "type" not in schema or schema.get("format") == "int-or-string":  # also a quantity: text or a number
        return {"type": ["string", "number"]}
    kept = {"type": schema["type"]}
    for below in ("items", "additionalProperties"):
        if isinstance(schema.get(below), dict):
            kept[below] = small(schema[below], left)
    return kept


if __name__ == "__main__":
    main(lambda: TARGET.write_text(text()))
