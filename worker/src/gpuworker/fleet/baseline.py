"""An earlier run, whose numbers later ones are compared with."""

from __future__ import annotations

import sys

from gpuworker.fleet.fleet_report import Fleet
from gpuworker.fleet.merge import merge
from gpuworker.fleet.outliers import Known, ValueKey
from gpuworker.fleet.report_sources import read
from gpuworker.judgement.report import FAIL


def load(path: str) -> dict[ValueKey, Known]:
    """Every number of the reports in a file or folder; exits with 2 if one is unreadable."""
    sources = read(path)
    if unreadable := [f"{source.name}: {source.error}" for source in sources if source.error]:
        print(f"accept-report: {'; '.join(unreadable)}", file=sys.stderr)
        sys.exit(2)
    return values(merge(sources))


def values(fleet: Fleet) -> dict[ValueKey, Known]:
    doubts = {}  # why no number of a node is a measure for later ones
    for node in fleet.nodes:
        if node.injected:
            doubts[node.node] = f"the fault {node.injected} was injected there"
        elif node.verdict == FAIL:
            doubts[node.node] = f"it is {FAIL} there"
    return {
        (p.node, p.device, d.check, d.name): Known(
            p.value, d.unit, d.model, d.level, doubts.get(p.node, "")
        )
        for d in fleet.distributions
        for p in d.points
    }
