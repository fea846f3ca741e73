"""Nodes of one kind should run the same software: who differs is named, whatever the tests say."""

from __future__ import annotations

from collections import Counter, defaultdict

from gpuworker.accept.report import WARN
from gpuworker.fleet.fleet_report import Finding
from gpuworker.fleet.outliers import gpu_models

FACTS = ("driver", "cuda", "nccl", "torch", "python", "kernel")


def drift(reports: list[dict]) -> tuple[list[Finding], list[str]]:
    """Against a majority among nodes with the same GPUs: WARN. Without one: a note."""
    kinds: dict[tuple[str, ...], list[dict]] = defaultdict(list)
    for report in reports:
        kinds[tuple(gpu_models(report))].append(report)
    findings, notes = [], []
    for members in kinds.values():
        for fact in FACTS:
            values = {report["node"]: str(report["facts"].get(fact) or "none") for report in members}
            ((usual, agree),) = Counter(values.values()).most_common(1)
            others = {node: value for node, value in values.items() if value != usual}
            if others and 2 * agree <= len(values):
                camps = ", ".join(f"{value} on {count}" for value, count in Counter(values.values()).most_common())
                notes.append(f"nodes of one kind differ in {fact}: {camps}")
            elif others:
                findings += [
                    Finding(WARN, f"{fact} is {value}; {agree} of {len(values)} nodes of this kind have {usual}", node,
                            found_by="fleet")
                    for node, value in others.items()
                ]  # fmt: skip
    return findings, notes
