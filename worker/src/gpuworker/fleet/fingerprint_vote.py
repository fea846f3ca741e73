"""Fingerprint vote: find silent data corruption by comparing the fingerprints of equal
computations.

Devices of one group (same GPU model, driver, torch, library, dtype) must produce the same bits. A
device that differs from the majority of its group FAILs. Fingerprints of different groups are not
compared: another library may correctly produce other bits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpuworker.fleet.fleet_report import Finding, natural_sort_key
from gpuworker.judgement.report import FAIL, INCOMPLETE, Report


class Fingerprint(NamedTuple):
    check: str
    name: str
    group: str
    node: str
    device: str
    value: str


def fingerprints(report: Report) -> Iterable[Fingerprint]:
    """Every fingerprint of a report. Its key in `hashes` is "name" or "name device"."""
    for check in report.checks:
        groups = check.facts.get("hash_group")
        for key, value in check.hashes.items():
            name, _, device = key.partition(" ")
            group = str(groups.get(device, "")) if isinstance(groups, dict) else ""
            yield Fingerprint(check.name, name, group, report.node, device, value)


def vote(found: Iterable[Fingerprint]) -> tuple[list[Finding], int]:
    """Compare the fingerprints of every group: without a majority all are INCOMPLETE, since one
    of them is wrong. And how many groups have one device.
    """
    groups: dict[tuple[str, str, str], dict[tuple[str, str], str]] = defaultdict(dict)
    for each in found:
        groups[each.check, each.name, each.group][each.node, each.device] = each.value
    findings, single = _missing(groups), 0
    for (check, name, group), values in sorted(groups.items()):
        sizes = Counter(values.values()).most_common()
        usual, agree = sizes[0]
        majority = 2 * agree > len(values)
        if majority:
            verdict, kind, problem = (
                FAIL,
                "wrong-bits",
                f"differs from {agree} of {len(values)} devices",
            )
        else:
            several = ", ".join(str(size) for _, size in sizes[:4]) + ", …" * (len(sizes) > 4)
            verdict, kind, problem = (
                INCOMPLETE,
                "no-majority",
                f"has no majority: {len(values)} devices in groups of {several}",
            )
        mismatched = [place for place, value in values.items() if value != usual or not majority]
        mismatched.sort(key=lambda place: [natural_sort_key(part) for part in place])
        reason = f"fingerprint {name} {problem} ({group})"
        findings += [
            Finding(verdict, kind, reason, node, device, check, "fingerprint")
            for node, device in mismatched
        ]
        single += len(values) == 1
    return findings, single


def _missing(groups: Mapping[tuple[str, str, str], Mapping[tuple[str, str], str]]) -> list[Finding]:
    """Devices without a fingerprint that most others of their group have."""
    of_group: dict[tuple[str, str], dict[str, set[tuple[str, str]]]] = defaultdict(dict)
    for (check, name, group), values in groups.items():
        of_group[check, group][name] = set(values)
    found = []
    for (check, group), names in of_group.items():
        devices = set().union(*names.values())
        for name, places in names.items():
            for node, device in sorted(devices - places) if 2 * len(places) > len(devices) else ():
                words = f"no fingerprint {name}, which {len(places)} like it have ({group})"
                found.append(
                    Finding(INCOMPLETE, "missing", words, node, device, check, "fingerprint")
                )
    return found
