"""An earlier run, read from a fleet report or from node reports."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpuworker.accept.report import FAIL
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
            if not _is_complete(found):
                _exit(f"{path}: damaged: its nodes, worlds or numbers lack fields or are of the wrong kind")
            return found
    sources = read(path)
    if unreadable := [f"{source.name}: {source.error}" for source in sources if source.error]:
        _exit("; ".join(unreadable))
    return merge(sources).to_dict()


def tested(fleet: dict) -> dict[str, dict]:
    """The nodes of a fleet report, and its worlds, by the name that their numbers have."""
    return {each["node"]: each for each in fleet["nodes"]} | {each["name"]: each for each in fleet["worlds"]}


def doubts(fleet: dict) -> dict[str, str]:
    """Node, or world -> why its numbers are not a measure for later ones; without those that are."""
    found = {}
    for name, each in tested(fleet).items():
        if each["injected"]:
            found[name] = f"the fault {each['injected']} was injected there"
        elif each["verdict"] == FAIL:
            found[name] = f"it is {FAIL} there"
    return found


def values(fleet: dict) -> dict[ValueKey, Known]:
    """Every measured value of a fleet report."""
    doubt = doubts(fleet)
    return {
        (p["node"], p["device"], d["check"], d["name"]): Known(
            p["value"], d["unit"], d["model"], d["level"], doubt.get(p["node"], "")
        )
        for d in fleet["distributions"]
        for p in d["points"]
    }


def _is_complete(fleet: dict) -> bool:
    """Whether a file has what is compared. A number may still be one that nothing can have."""
    try:
        numbers = [known.value for known in values(fleet).values()]
        fields = [(each["device"], each["level"], each["verdict"]) for each in tested(fleet).values()]
        counts = [number for node in fleet["nodes"] for number in (node["gpus_seen"], node["gpus_expected"])]
    except (LookupError, TypeError, AttributeError):
        return False
    kinds = {type(value) for value in (*numbers, *counts)} <= {int, float}
    return kinds and all(isinstance(text, str) for texts in fields for text in texts)


def _exit(problem: str) -> None:
    print(f"accept-report: {problem}", file=sys.stderr)
    sys.exit(2)
