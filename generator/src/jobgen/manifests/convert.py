"""Conversion of a file with one manifest to values."""

from __future__ import annotations

import re
import shlex

from jobgen import __version__, credentials, leaks
from jobgen.api import Result
from jobgen.contract import VALUES_SCHEMA_VERSION
from jobgen.convert import needs_jobs
from jobgen.diagnostics import ERROR, Diagnostic, InvalidInputError, Path
from jobgen.manifests.kinds import GROUP, KINDS
from jobgen.manifests.manifest import Manifest
from jobgen.yaml_loader import Document, load
from jobgen.yaml_writer import manifest as written

OF_THE_SERVER = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink")


def to_values(source: bytes, name: str | None = None, allow: frozenset[str] = frozenset()) -> Result:
    """Values for the one object of a known kind, with notes about what they lose.

    `name` replaces that of the object; `allow`: variables and paths that look like credentials.
    """
    try:
        documents = [each for each in load(source) if isinstance(each.value, dict)]
        found = [each for each in documents if _is_known(each.value)]
        if len(found) != 1:
            raise InvalidInputError(_no_object(documents, len(found)))
    except InvalidInputError as invalid:
        return Result(None, sorted(invalid.diagnostics), parsed=False)
    manifest = Manifest(found[0])
    if name:
        manifest.value["metadata"] = {**(manifest.value.get("metadata") or {}), "name": name}
    for each in documents:
        if each is not found[0]:
            other = Manifest(each)
            other.note(("kind",), "another object of the file")
            manifest.diagnostics += other.diagnostics
    for path, shown in leaks.find(manifest.value):
        if shown not in allow:
            message = "looks like a credential, which would be readable in the values; take it from a Secret"
            manifest.error(path, f"{message}, or pass --allow {shlex.quote(shown)}")
    if not isinstance(manifest.value.get("spec"), dict):
        manifest.error((), "has no spec")
        return Result(None, manifest.diagnostics)
    kind = manifest.value["kind"]
    chart, values = KINDS[kind][1](manifest)
    values |= read_metadata(manifest)
    values |= read_limits(manifest, ("spec", "runPolicy") if kind == "PyTorchJob" else ("spec",))
    if reason := needs_jobs(values.get("tasks", {}), values.get("kueue")):
        values["layout"] = "jobs"
        manifest.note(("spec",), reason)
        for each in values["tasks"].values():
            if each["numNodes"] > 1:
                each.pop("recovery", None)
    manifest.note_rest()
    if chart == GROUP:
        values["schemaVersion"] = VALUES_SCHEMA_VERSION  # last, and required: truncated output is refused
    diagnostics = sorted(set(manifest.diagnostics))
    if any(each.severity == ERROR for each in diagnostics):
        return Result(None, diagnostics)
    head = f"# Values of the chart {chart}, written by jobgen {__version__} from a {kind}. Yours to edit.\n"
    return Result(head + written(values), diagnostics)


def _is_known(value: dict) -> bool:
    kind = value.get("kind")
    return isinstance(kind, str) and kind in KINDS and str(value.get("apiVersion")).startswith(KINDS[kind][0])


def _no_object(documents: list[Document], count: int) -> Diagnostic:
    position = documents[0].position(()) if documents else (1, 1)
    if not documents or any("execution" in each.value for each in documents):
        problem = "a job group, which `jobgen to-values` reads" if documents else "no manifest: the file is empty"
        return Diagnostic(*position, "manifest", None, "$", problem, "not-convertible")
    known = ", ".join(f"{kind} ({group}…)" for kind, (group, _) in KINDS.items())
    there = ", ".join(f"{each.value.get('kind')} of {each.value.get('apiVersion')}" for each in documents)
    problem = (
        f"{count} objects of these kinds; keep one" if count else f"no object of a kind that jobgen reads ({there})"
    )
    return Diagnostic(*position, "manifest", None, "$", credentials.redact(f"{problem}: {known}"), "not-convertible")


def read_limits(manifest: Manifest, path: Path) -> dict:
    """Deadline and time until the finished object is deleted, in seconds; both charts have them under these names."""
    names = [name for name in ("activeDeadlineSeconds", "ttlSecondsAfterFinished") if manifest.has(*path, name)]
    return {name: manifest.take(*path, name, default=0) for name in names}


def read_metadata(manifest: Manifest) -> dict:
    """Queue and priority as values; the namespace as a note."""
    for key in ("apiVersion", "kind", "status"):
        manifest.rest.pop(key, None)
    metadata = manifest.rest.get("metadata")
    for key in ("name", *OF_THE_SERVER):
        if isinstance(metadata, dict):
            metadata.pop(key, None)
    if namespace := manifest.take("metadata", "namespace", default=""):
        manifest.note(("metadata", "namespace"), f"install with --namespace {shlex.quote(namespace)}")
    labels = ("queue-name", "queueName"), ("priority-class", "priorityClass")
    found = {}
    for label, value in labels:
        path = "metadata", "labels", f"kueue.x-k8s.io/{label}"
        if given := manifest.take(*path, default=""):
            found[value] = given
            if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", given):
                manifest.error(path, "is no name of an object")
    return {"kueue": found} if found else {}
