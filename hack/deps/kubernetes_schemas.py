"""Strict JSON schemas of the objects that the charts render, for kubeconform: python3 -m
hack.deps.kubernetes_schemas.

Their sources are the Go modules that hack/go pins: the same Kubernetes and JobSet that the tests
run, without network access. Other versions of Kubernetes come from the Go module proxy. Strict: an
undeclared field is an error, because the API server would drop it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from pathlib import Path

import yaml

from hack.deps.go_tools import source
from hack.paths import CACHE, built_once, main, step

# OpenAPI document -> kinds taken from it.
KUBERNETES = {
    "api__v1": ("ConfigMap", "PersistentVolumeClaim", "Secret", "Service", "ServiceAccount"),
    "apis__apps__v1": ("DaemonSet", "Deployment", "StatefulSet"),
    "apis__batch__v1": ("CronJob", "Job"),
    "apis__networking.k8s.io__v1": ("NetworkPolicy",),
    "apis__rbac.authorization.k8s.io__v1": (
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
    ),
    "apis__policy__v1": ("PodDisruptionBudget",),
    "apis__scheduling.k8s.io__v1beta1": ("PodGroup",),  # since 1.37
}
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


def location(version: str = "") -> str:
    """Value of kubeconform's -schema-location: folder() with the pattern of its file names."""
    return f"{folder(version)}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"


def folder(version: str = "") -> Path:
    """Folder with the schemas of a version of Kubernetes, or of the pinned one, written if
    necessary.
    """
    kubernetes = source(
        "kubernetes", f"k8s.io/kubernetes@v{version}" if version else "k8s.io/kubernetes"
    )
    jobset = source("jobset", "sigs.k8s.io/jobset")
    sources = [Path(__file__).read_text(), kubernetes["Version"], jobset["Version"]]
    target = CACHE / f"schemas-{hashlib.sha256(repr(sources).encode()).hexdigest()[:12]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "schemas.lock", "w") as lock:  # for parallel test processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with step("schemas for kubeconform"), built_once(target) as scratch:
                scratch.mkdir()
                openapi = Path(kubernetes["Dir"]) / "api/openapi-spec/v3"
                for document, kinds in KUBERNETES.items():
                    if not (openapi / f"{document}_openapi.json").exists():
                        continue
                    write_kubernetes(
                        scratch,
                        json.loads((openapi / f"{document}_openapi.json").read_text()),
                        kinds,
                    )
                meta = json.loads((openapi / "api__v1_openapi.json").read_text())["components"]
                for crd in sorted((Path(jobset["Dir"]) / "charts/jobset/crds").glob("*.yaml")):
                    write_crd(scratch, yaml.safe_load(crd.read_text()), meta)
    return target


def write_kubernetes(target: Path, document: dict, kinds: tuple[str, ...]) -> None:
    for name, schema in document["components"]["schemas"].items():
        for gvk in schema.get("x-kubernetes-group-version-kind", []):
            if gvk["kind"] in kinds:
                write(target, gvk, {"$ref": f"#/components/schemas/{name}"}, document["components"])


def write_crd(target: Path, crd: dict, meta: dict) -> None:
    for version in crd["spec"]["versions"]:
        gvk = {
            "group": crd["spec"]["group"],
            "version": version["name"],
            "kind": crd["spec"]["names"]["kind"],
        }
        schema = version["schema"]["openAPIV3Schema"]
        # A CRD does not declare metadata; the API server adds it.
        schema["properties"]["metadata"] = {"$ref": f"#/components/schemas/{OBJECT_META}"}
        write(target, gvk, schema, meta)


def write(target: Path, gvk: dict[str, str], schema: dict, components: dict) -> None:
    suffix = [gvk["group"].split(".")[0], gvk["version"]] if gvk["group"] else [gvk["version"]]
    whole = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "allOf": [strict(schema), {"required": ["apiVersion", "kind", "metadata"]}],
        "components": strict(components),
    }
    (target / "-".join([gvk["kind"].lower(), *suffix])).with_suffix(".json").write_text(
        json.dumps(whole)
    )


def strict(schema):
    """Close every object that declares its fields; translate OpenAPI keywords to JSON Schema."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string") is True or schema.get("format") == "int-or-string":
        closed.pop("type", None)
        closed["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    elif isinstance(schema.get("properties"), dict) and not schema.get(
        "x-kubernetes-preserve-unknown-fields"
    ):
        closed.setdefault("additionalProperties", False)
    return closed


if __name__ == "__main__":
    main(lambda: print(folder()))
