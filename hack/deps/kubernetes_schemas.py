"""Strict JSON schemas of the objects that the charts render, for kubeconform: python3 -m hack.deps.kubernetes_schemas.

They come from the Go modules that hack/go pins, so they are those of the Kubernetes and the JobSet that the tests
run, and checking needs no network. Strict: a field that is not declared is an error, as the API server would drop it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from pathlib import Path

import yaml

from hack.deps.go_tools import MODULES
from hack.paths import CACHE, built_once, main, run, step

# OpenAPI document -> kinds taken from it.
KUBERNETES = {
    "api__v1": ("ConfigMap", "PersistentVolumeClaim", "Secret", "Service"),
    "apis__apps__v1": ("DaemonSet", "Deployment", "StatefulSet"),
    "apis__batch__v1": ("Job",),
    "apis__networking.k8s.io__v1": ("NetworkPolicy",),
    "apis__policy__v1": ("PodDisruptionBudget",),
}
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


def location() -> str:
    """What kubeconform's -schema-location wants: folder() and how it names its files."""
    return f"{folder()}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"


def folder() -> Path:
    """The folder with the schemas, made if needed."""
    kubernetes, jobset = module("kubernetes", "k8s.io/kubernetes"), module("jobset", "sigs.k8s.io/jobset")
    sources = [Path(__file__).read_text(), kubernetes["Version"], jobset["Version"]]
    target = CACHE / f"schemas-{hashlib.sha256(repr(sources).encode()).hexdigest()[:12]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "schemas.lock", "w") as lock:  # several test processes may ask at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with step("making the schemas for kubeconform"), built_once(target) as scratch:
                scratch.mkdir()
                openapi = Path(kubernetes["Dir"]) / "api/openapi-spec/v3"
                for document, kinds in KUBERNETES.items():
                    write_kubernetes(scratch, json.loads((openapi / f"{document}_openapi.json").read_text()), kinds)
                meta = json.loads((openapi / "api__v1_openapi.json").read_text())["components"]
                for crd in sorted((Path(jobset["Dir"]) / "charts/jobset/crds").glob("*.yaml")):
                    write_crd(scratch, yaml.safe_load(crd.read_text()), meta)
    return target


def module(name: str, path: str) -> dict:
    """Version and Dir of a Go module; fetched if it is not there."""
    return json.loads(run("go", "mod", "download", "-json", path, cwd=MODULES / name))


def write_kubernetes(target: Path, document: dict, kinds: tuple[str, ...]) -> None:
    for name, schema in document["components"]["schemas"].items():
        for gvk in schema.get("x-kubernetes-group-version-kind", []):
            if gvk["kind"] in kinds:
                write(target, gvk, {"$ref": f"#/components/schemas/{name}"}, document["components"])


def write_crd(target: Path, crd: dict, meta: dict) -> None:
    for version in crd["spec"]["versions"]:
        gvk = {"group": crd["spec"]["group"], "version": version["name"], "kind": crd["spec"]["names"]["kind"]}
        schema = version["schema"]["openAPIV3Schema"]
        # A CRD leaves metadata open, as the API server knows it.
        schema["properties"]["metadata"] = {"$ref": f"#/components/schemas/{OBJECT_META}"}
        write(target, gvk, schema, meta)


def write(target: Path, gvk: dict[str, str], schema: dict, components: dict) -> None:
    suffix = [gvk["group"].split(".")[0], gvk["version"]] if gvk["group"] else [gvk["version"]]
    whole = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "allOf": [strict(schema), {"required": ["apiVersion", "kind", "metadata"]}],
        "components": strict(components),
    }
    (target / "-".join([gvk["kind"].lower(), *suffix])).with_suffix(".json").write_text(json.dumps(whole))


def strict(schema):
    """Close every object that declares its fields; say in JSON Schema what only OpenAPI says."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string") is True or schema.get("format") == "int-or-string":
        closed.pop("type", None)
        closed["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    elif isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed


if __name__ == "__main__":
    main(lambda: print(folder()))
