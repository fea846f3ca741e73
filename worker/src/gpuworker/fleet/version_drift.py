"""Version drift: nodes with the same GPU models that run different software, whatever their checks found."""

from __future__ import annotations

from collections import Counter, defaultdict

from gpuworker.accept.report import WARN
from gpuworker.fleet.fleet_report import Finding
from gpuworker.fleet.outliers import gpu_models

FACTS = ("driver", "cuda", "nccl", "torch", "python", "kernel")


def version_drift(reports: list[dict]) -> tuple[list[Finding], list[str]]:
    """Nodes that differ from the majority of nodes with the same GPUs: WARN. Without a majority: a note."""
    groups: dict[tuple[str, ...], list[dict]] = defaultdict(list)
    for report in reports:
        groups[tuple(gpu_models(report))].append(report)
    findings, notes = [], []
    for members in groups.values():
        for fact in FACTS:
            values = {report["node"]: str(report["facts"].get(fact) or "none") for report in members}
            counts = Counter(values.values()).most_common()
            usual, agree = counts[0]
            if len(counts) > 1 and 2 * agree <= len(values):
                several = ", ".join(f"{value} on {count}" for value, count in counts)
                notes.append(f"nodes with the same GPUs differ in {fact}: {several}")
                continue
            same = f"{agree} of {len(values)} nodes with the same GPUs have {usual}"
            findings += [
                Finding(WARN, f"{fact} is {value}; {same}", node, found_by="fleet")
                for node, value in values.items()
                if value != usual
            ]
    return findings, notes
