"""Version drift: nodes with the same GPU models with different software or firmware, whatever
their checks found.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from gpuworker.fleet.fleet_report import Finding
from gpuworker.fleet.outliers import gpu_models
from gpuworker.judgement.report import WARN, Report

SOFTWARE = ("driver", "cuda", "torch")  # what changes the speed of a computation
FACTS = ("driver", "cuda", "nccl", "torch", "python", "kernel")
# Name -> list in the facts of the environment check, field of its items.
FIRMWARE = {
    "VBIOS": ("gpus", "vbios"),
    "InfoROM": ("gpus", "inforom"),
    "firmware of network adapters": ("ports", "firmware"),
}


def firmware_of(report: Report) -> dict[str, str]:
    """Every version that the environment check found on a part of the node."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, (parts, field) in FIRMWARE.items():
        for part in report.listed(parts):
            version = part.get(field)
            if isinstance(version, str) and version:
                kind = part.get("kind")
                found[name].add(f"{kind} {version}" if isinstance(kind, str) and kind else version)
    return {name: ", ".join(sorted(versions))[:200] for name, versions in found.items()}


def versions_of(report: Report) -> dict[str, str]:
    """Versions of software and firmware, without those that are not known."""
    facts = {name: str(report.facts.get(name) or "") for name in FACTS}
    return {name: value for name, value in {**facts, **firmware_of(report)}.items() if value}


def version_drift(reports: list[Report]) -> tuple[list[Finding], list[str]]:
    """Nodes that differ from the majority of nodes with the same GPUs: WARN. Without a majority:
    a note.
    """
    groups: dict[tuple[str, ...], list[Report]] = defaultdict(list)
    for report in reports:
        groups[tuple(gpu_models(report))].append(report)
    findings, notes = [], []
    for members in groups.values():
        versions = {report.node: versions_of(report) for report in members}
        for fact in (*FACTS, *FIRMWARE):
            values = {report.node: versions[report.node].get(fact, "none") for report in members}
            counts = Counter(values.values()).most_common()
            usual, agree = counts[0]
            if len(counts) > 1 and 2 * agree <= len(values):
                several = ", ".join(f"{value} on {count}" for value, count in counts)
                notes.append(f"nodes with the same GPUs differ in {fact}: {several}")
                continue
            same = f"{agree} of {len(values)} nodes with the same GPUs have {usual}"
            findings += [
                Finding(
                    WARN,
                    "drift",
                    f"{fact} is {value}; {same}",
                    node,
                    found_by="fleet",
                    numbers={"measure": fact},
                )
                for node, value in values.items()
                if value != usual
            ]
    return findings, notes
