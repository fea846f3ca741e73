"""SkyPilot's volume files as PersistentVolumeClaims."""

from __future__ import annotations

from jobgen.api import Result
from jobgen.diagnostics import ERROR, Diagnostic, InvalidInputError
from jobgen.group import GroupDocument
from jobgen.options import Options
from jobgen.quantities import quantity
from jobgen.yaml_loader import load
from jobgen.yaml_writer import manifest


class _Volume(GroupDocument):
    """One document of a volume file."""

    @property
    def scope(self) -> str:
        return "volume"


def to_claims(source: bytes) -> Result:
    """Return a PersistentVolumeClaim for each document, and diagnostics."""
    try:
        documents = [each for each in load(source) if each.value is not None]
        if not documents:
            raise InvalidInputError(Diagnostic(1, 1, "volume", None, "$", "the file is empty", "missing-field"))
    except InvalidInputError as invalid:
        return Result(None, sorted(invalid.diagnostics), parsed=False)
    volumes = [_Volume(each, 0, Options(), ()) for each in documents]
    texts = []
    for volume in volumes:
        volume.read("volume", volume.document.value)
        if volume.fields and "size" not in volume.fields and not volume.diagnostics:
            volume.report("missing-field", (), 'must have a "size" field, such as size: 100Gi')
        if all(each.severity != ERROR for each in volume.diagnostics):
            texts.append(manifest(_claim(volume)))
    found = sorted(each for volume in volumes for each in volume.diagnostics)
    return Result("---\n".join(texts) if len(texts) == len(volumes) else None, found)


def _claim(volume: GroupDocument) -> dict:
    fields, config = volume.fields, volume.fields.get("config", {})
    mode = config.get("access_mode", "ReadWriteOnce")
    if mode in ("ReadWriteOnce", "ReadWriteOncePod"):
        volume.note((), f"{mode}: pods on several nodes cannot mount it; they need config.access_mode: ReadWriteMany")
    metadata = {"name": fields["name"], "namespace": config.get("namespace"), "labels": fields.get("labels")}
    spec = {
        "accessModes": [mode],
        "storageClassName": config.get("storage_class_name"),
        "resources": {"requests": {"storage": quantity(fields["size"], "gi")}},
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {key: value for key, value in metadata.items() if value},
        "spec": {key: value for key, value in spec.items() if value is not None},
    }
