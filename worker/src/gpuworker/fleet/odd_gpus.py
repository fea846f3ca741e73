"""Odd GPUs: those that a setting in which the GPUs of a node differ is about."""

from __future__ import annotations

import re

from gpuworker.fleet.part import Parts

DIFFER = re.compile(r"the GPUs differ in ([^:]+): (.+)")
DRIFT = re.compile(r"(VBIOS|InfoROM) is .* nodes with the same GPUs have")  # of a node, since one of its GPUs has it


def to_odd_gpus(parts: Parts) -> None:
    """Give what the node has about a difference to the GPUs that have other values than most."""
    differing: dict[str, list[str]] = {}  # setting -> GPUs
    of_node = parts[""].findings
    for finding in of_node:
        if found := DIFFER.match(finding.reason):
            differing[found[1]] = _odd(found[2], set(parts))
    for finding in list(of_node):
        found = DIFFER.match(finding.reason) or DRIFT.match(finding.reason)
        odd = differing.get(found[1], []) if found else []
        for device in odd:
            parts[device].findings.append(finding)
        if odd:
            of_node.remove(finding)
    if not of_node:
        del parts[""]


def _odd(groups: str, marked: set[str]) -> list[str]:
    """Of "True on cuda:0, cuda:1; False on cuda:2": those that have findings of their own, else fewer than the rest."""
    by_value = [group.rpartition(" on ")[2].split(", ") for group in groups.split("; ")]
    own = [group for group in by_value if marked.issuperset(group)]
    if not own or len(own) == len(by_value):
        most = max(by_value, key=len)
        own = [group for group in by_value if group is not most]
        if sum(map(len, own)) >= len(most):
            return []
    return [device for group in own for device in group]
