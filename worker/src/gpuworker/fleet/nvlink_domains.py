"""NVLink domains across nodes: a node of a rack that has joined no domain, or one of its own.

A single HGX node has a domain of zeros (its fabric ends at the node), so only a difference from
other nodes is a fault.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from gpuworker.fleet.fleet_report import Finding
from gpuworker.fleet.outliers import gpu_models
from gpuworker.judgement.report import FAIL, WARN, Report


def nvlink_domains(reports: list[Report]) -> list[Finding]:
    groups: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    for report in reports:
        if domains := {_domain(gpu) for gpu in report.listed("gpus")}:
            # "" if none of its GPUs has joined one
            groups[tuple(gpu_models(report))][report.node] = max(domains)
    return [finding for nodes in groups.values() for finding in _differences(nodes)]


def _domain(gpu: dict) -> str:
    """UUID and clique; "" for a GPU that has joined none."""
    cluster, clique = gpu.get("fabric_cluster"), gpu.get("fabric_clique")
    joined = isinstance(cluster, str) and cluster.strip("0-")
    return f"{cluster[:64]} clique {clique!s:.20}" if joined else ""


def _differences(nodes: dict[str, str]) -> list[Finding]:
    counts = Counter(nodes.values())
    joined = len(nodes) - counts[""]
    found = []
    for node, domain in nodes.items():
        if not domain and joined and 2 * joined >= len(nodes):
            words = f"its GPUs are in no NVLink domain; {joined} of {len(nodes)} nodes with the same GPUs are in one"
            found.append(
                Finding(FAIL, "fabric-manager", words, node, check="environment", found_by="fleet")
            )
        elif domain and counts[domain] == 1 and joined > 2 and max(counts.values()) > 1:
            words = f"it is alone in its NVLink domain, {domain}; other nodes with the same GPUs share one"
            found.append(
                Finding(WARN, "fabric-manager", words, node, check="environment", found_by="fleet")
            )
    return found
