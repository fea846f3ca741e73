"""Conversion of one manifest to values."""

from __future__ import annotations

from jobgen import __version__
from jobgen.api import Result
from jobgen.diagnostics import ERROR, Diagnostic, InvalidInputError
from jobgen.manifests.kinds import READERS
from jobgen.manifests.pods import Manifest, refuse_credentials
from jobgen.yaml_loader import load
from jobgen.yaml_writer import manifest as written


def to_values(source: bytes) -> Result:
    """Return the values for the first object of a known kind, with notes about what they lose."""
    try:
        documents = [each for each in load(source) if isinstance(each.value, dict)]
        found = [each for each in documents if each.value.get("kind") in READERS]
        if len(found) != 1:
            raise InvalidInputError(_no_object(documents, len(found)))
    except InvalidInputError as invalid:
        return Result(None, sorted(invalid.diagnostics), parsed=False)
    manifest = Manifest(found[0])
    for each in documents:
        if each is not found[0]:
            other = Manifest(each)
            other.lost(("kind",), "another object of the file")
            manifest.diagnostics += other.diagnostics
    if not isinstance(manifest.value.get("spec"), dict):
        manifest.error((), "has no spec")
        return Result(None, manifest.diagnostics)
    refuse_credentials(manifest, manifest.value)
    chart, values = READERS[manifest.value["kind"]](manifest)
    diagnostics = sorted(set(manifest.diagnostics))
    if any(each.severity == ERROR for each in diagnostics):
        return Result(None, diagnostics)
    kind = manifest.value["kind"]
    head = f"# Values of the chart {chart}, written by jobgen {__version__} from a {kind}. Yours to edit.\n"
    return Result(head + written(values), diagnostics)


def _no_object(documents: list, count: int) -> Diagnostic:
    known = ", ".join(READERS)
    problem = f"{count} objects of these kinds; keep one" if count else "no object of a kind that jobgen reads"
    position = documents[0].position(()) if documents else (1, 1)
    return Diagnostic(*position, "manifest", None, "$", f"{problem}: {known}", "not-convertible")
