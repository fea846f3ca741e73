"""Silent corruption: devices that compute the same thing must get the same bits. The majority names the odd one.

Fingerprints are compared within a group only (same GPU model, driver, torch, library, dtype): another library may
rightly give other bits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from gpuworker.accept.report import FAIL, WARN
from gpuworker.fleet.fleet_report import Finding, Vote, natural

Ballot = tuple[str, str, str, str, str, str]  # check, fingerprint, group, node, device, hash


def ballots(report: dict) -> Iterable[Ballot]:
    """Every fingerprint of a report. Its name is "fingerprint" or "fingerprint device"."""
    for check in report["checks"]:
        group = str(check["facts"].get("hash_group", ""))
        for name, value in check["hashes"].items():
            fingerprint, _, device = name.partition(" ")
            yield check["name"], fingerprint, group, report["node"], device, value


def vote(all_ballots: Iterable[Ballot]) -> tuple[list[Vote], list[Finding]]:
    """Count every group. Against a majority: FAIL. Without a majority nobody can say who is right: WARN for all."""
    groups: dict[tuple[str, str, str], dict[tuple[str, str], str]] = defaultdict(dict)
    for check, fingerprint, group, node, device, value in all_ballots:
        groups[check, fingerprint, group][node, device] = value
    votes, findings = [], []
    for (check, fingerprint, group), voters in sorted(groups.items()):
        ((most, agree),) = Counter(voters.values()).most_common(1)
        majority = 2 * agree > len(voters)
        odd = [voter for voter, value in voters.items() if value != most or not majority]
        odd.sort(key=lambda voter: [natural(part) for part in voter])
        for node, device in odd:
            why = f"differs from {agree} of {len(voters)} devices" if majority else f"{_camps(voters)} do not agree"
            verdict = FAIL if majority else WARN
            findings.append(Finding(verdict, f"fingerprint {fingerprint} {why} ({group})", node, device, check, "vote"))
        names = [f"{node} {device}".rstrip() for node, device in odd]
        votes.append(Vote(check, fingerprint, group, len(voters), agree, names))
    return votes, findings


def _camps(voters: dict[tuple[str, str], str]) -> str:
    sizes = sorted(Counter(voters.values()).values(), reverse=True)
    return f"{len(voters)} devices in camps of {', '.join(map(str, sizes[:4]))}{', …' * (len(sizes) > 4)}"
