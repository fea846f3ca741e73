"""An earlier run, read from a fleet report or from node reports."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpuworker.fleet.fleet_report import FLEET_SCHEMA_VERSION
from gpuworker.fleet.merge import merge
from gpuworker.fleet.outliers import Known, ValueKey
from gpuworker.fleet.report_sources import read


def load(path: str) -> dict:
    """A run as fleet JSON, from a file of `accept-report merge --json` or from reports; exits with 2 if unreadable."""
    file = Path(path)
    if file.is_file():
        try:
            found = json.loads(file.read_bytes())
        except ValueError:
            found = None  # a log
        if isinstance(found, dict) and "distributions" in found:
            version = found.get("schema_version")
            if version != FLEET_SCHEMA_VERSION:
                _exit(f"{path}: schema_version {version!r} is not supported; supported: {FLEET_SCHEMA_VERSION}")
            return found
    sources = read(path)
    if unreadable := [f"{source.name}: {source.error}" for source in sources if source.error]:
        _exit("; ".join(unreadable))
    return merge(sources).to_dict()


def values(fleet: dict) -> dict[ValueKey, Known]:
    """Every measured value of a fleet report."""
    return {
        (p["node"], p["device"], d["check"], d["name"]): Known(p["value"], d["unit"], d["model"])
        for d in fleet["distributions"]
        for p in d["points"]
    }


def _exit(problem: str) -> None:
    print(f"accept-report: {problem}", file=sys.stderr)
    sys.exit(2)
