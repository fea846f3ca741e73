"""Fingerprint vote: find silent data corruption by comparing the fingerprints of equal
computations.

Devices of one group (same GPU model, driver, torch, library, dtype) must produce the same bits. A
device that differs from the majority of its group FAILs. Fingerprints of different groups are not
compared: another library may correctly produce other bits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator

from gpuworker.fleet.fleet_report import Finding
from gpuworker.judgement.report import FAIL, INCOMPLETE, Report

Places = dict[tuple[str, str], str]  # node and device -> fingerprint


def vote(reports: Iterable[Report]) -> tuple[list[Finding], int]:
    """Compare the fingerprints of every group: without a majority all are INCOMPLETE, since one
    of them is wrong. And how many groups have one device.
    """
    # check and group -> name -> fingerprints
    groups: dict[tuple[str, str], dict[str, Places]] = defaultdict(lambda: defaultdict(dict))
    for report in reports:
        for check in report.checks:
            of = check.facts.get("hash_group")
            for key, value in check.hashes.items():  # by "name" or "name device"
                name, _, device = key.partition(" ")
                group = str(of.get(device, "")) if isinstance(of, dict) else ""
                groups[check.name, group][name][report.node, device] = value
    findings, single = [], 0
    for (check, group), names in sorted(groups.items()):
        everyone = set().union(*names.values())
        for name, places in sorted(names.items()):
            single += len(places) == 1
            for verdict, kind, words, (node, device) in _unlike(name, places, everyone):
                reason = f"{words} ({group})"
                findings.append(Finding(verdict, kind, reason, node, device, check, "fingerprint"))
    return findings, single


def _unlike(
    name: str, places: Places, everyone: Collection[tuple[str, str]]
) -> Iterator[tuple[str, str, str, tuple[str, str]]]:
    """Verdict, kind, words and place of what differs, or is missing where most others have it."""
    if 2 * len(places) > len(everyone):
        words = f"no fingerprint {name}, which {len(places)} like it have"
        for place in sorted(everyone - places.keys()):
            yield INCOMPLETE, "missing", words, place
    sizes = Counter(places.values()).most_common()
    usual, agree = sizes[0]
    if 2 * agree > len(places):
        words = f"fingerprint {name} differs from {agree} of {len(places)} devices"
        for place, value in places.items():
            if value != usual:
                yield FAIL, "wrong-bits", words, place
        return
    several = ", ".join(str(size) for _, size in sizes[:4]) + ", …" * (len(sizes) > 4)
    words = f"fingerprint {name} has no majority: {len(places)} devices in groups of {several}"
    for place in places:
        yield INCOMPLETE, "no-majority", words, place
