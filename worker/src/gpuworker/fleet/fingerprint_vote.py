"""Fingerprint vote: find silent data corruption by comparing the fingerprints of equal computations.

Devices of one group (same GPU model, driver, torch, library, dtype) must produce the same bits. A device that differs
from the majority of its group FAILs. Fingerprints of different groups are not compared: another library may correctly
produce other bits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from gpuworker.accept.report import FAIL, INCOMPLETE
from gpuworker.fleet.fleet_report import Finding, FingerprintGroup, natural_sort_key


class Fingerprint(NamedTuple):
    check: str
    name: str
    group: str
    node: str
    device: str
    value: str


def fingerprints(report: dict) -> Iterable[Fingerprint]:
    """Every fingerprint of a report. Its key in `hashes` is "name" or "name device"."""
    for check in report["checks"]:
        group = str(check["facts"].get("hash_group", ""))
        for key, value in check["hashes"].items():
            name, _, device = key.partition(" ")
            yield Fingerprint(check["name"], name, group, report["node"], device, value)


def vote(found: Iterable[Fingerprint]) -> tuple[list[FingerprintGroup], list[Finding]]:
    """Compare the fingerprints of every group: without a majority all are INCOMPLETE, since one of them is wrong."""
    groups: dict[tuple[str, str, str], dict[tuple[str, str], str]] = defaultdict(dict)
    for each in found:
        groups[each.check, each.name, each.group][each.node, each.device] = each.value
    results, findings = [], []
    for (check, name, group), values in sorted(groups.items()):
        sizes = Counter(values.values()).most_common()
        usual, agree = sizes[0]
        majority = 2 * agree > len(values)
        if majority:
            verdict, problem = FAIL, f"differs from {agree} of {len(values)} devices"
        else:
            several = ", ".join(str(size) for _, size in sizes[:4]) + ", …" * (len(sizes) > 4)
            verdict, problem = INCOMPLETE, f"has no majority: {len(values)} devices in groups of {several}"
        mismatched = [place for place, value in values.items() if value != usual or not majority]
        mismatched.sort(key=lambda place: [natural_sort_key(part) for part in place])
        reason = f"fingerprint {name} {problem} ({group})"
        findings += [Finding(verdict, reason, node, device, check, "fingerprint") for node, device in mismatched]
        names = [" ".join(place).rstrip() for place in mismatched]
        results.append(FingerprintGroup(check, name, group, len(values), agree, names))
    return results, findings
