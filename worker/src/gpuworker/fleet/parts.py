"""Parts of a node: its GPUs, links, network ports, what its GPUs share, and the node, with the findings about each.

A GPU with a bad NVLink makes every link to and from it slow. Links of a node are therefore counted per GPU: a GPU with
several bad links is the part that all of them are about, and a single bad link is a part of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpuworker.accept.report import FAIL
from gpuworker.fleet import consequences, lost_gpu
from gpuworker.fleet.consequences import Candidate, Kind
from gpuworker.fleet.gpu_identity import GpuIdentity
from gpuworker.fleet.odd_gpus import to_odd_gpus
from gpuworker.fleet.part import Parts, several
from gpuworker.fleet.places import ARROW, place_of
from gpuworker.fleet.ranking import COLLECTIVES
from gpuworker.fleet.shared import join_gpus, join_ports

FABRIC = "GPU fabric"  # part of a node: what connects its GPUs
SHARE_OF_FABRIC = 0.5  # wrong collectives of more of a node's GPUs are the fabric's, not that of each receiver
SHARE_OF_LINKS = 0.9  # bad links between more pairs of a node's GPUs are of no single GPU


def parts_of(findings: list, known: list[GpuIdentity], gpus: int, ports: Mapping[str, Mapping]) -> Parts:
    """`known`: the GPUs that the report names; `gpus`: the number of those under test."""
    parts, links = Parts(), defaultdict(list)
    candidates: dict[Kind, list[Candidate]] = defaultdict(list)
    lost = lost_gpu.name_of(known, findings)
    for finding in findings:
        device = place_of(finding, known)
        if not device and lost_gpu.is_count(finding.reason):
            device = lost
        if kind := consequences.kind_of(device, finding):
            candidates[kind].append(Candidate(device, finding))
        elif ARROW in device:
            links[device].append(finding)
        else:
            parts[device].findings.append(finding)
    _add_links(parts, links, gpus)
    to_odd_gpus(parts)
    consequences.assign(parts, candidates, gpus)
    missing = {name: parts.pop(name).findings for name in list(parts) if ARROW in name}  # without a cause
    _add_links(parts, missing, gpus)
    _join_fabric(parts, gpus)
    join_gpus(parts, gpus)
    join_ports(parts, ports)
    return parts


def _add_links(parts: Parts, of_direction: Mapping[str, list], gpus: int) -> None:
    """Add links, by direction, to the GPUs that they are about, or as parts of their own."""
    links: dict[tuple[str, str], list] = defaultdict(list)
    for name, about in of_direction.items():
        a, b = sorted(name.split(ARROW, 1))
        links[a, b] += about
    if gpus > 2 and len(links) >= SHARE_OF_LINKS * gpus * (gpus - 1) / 2 and _are_alike(links.values()):
        parts[several(gpus, gpus)].findings += [finding for about in links.values() for finding in about]
        return
    while links:
        peers: dict[str, int] = defaultdict(int)
        for pair in links:
            for device in pair:
                peers[device] += 1
        worst = max(peers, key=lambda device: (peers[device] + (device in parts), device in parts))
        if peers[worst] + (worst in parts) < 2:
            break
        for pair in [pair for pair in links if worst in pair]:
            parts[worst].findings += links.pop(pair)
    for (a, b), about in links.items():
        parts[f"{a}↔{b}"].findings += about


def _are_alike(links: Iterable[list]) -> bool:
    """Whether most bad links fail, or none does: else those that fail show the GPU."""
    failed = [any(finding.verdict == FAIL for finding in about) for about in links]
    return not any(failed) or sum(failed) >= SHARE_OF_LINKS * len(failed)


def _join_fabric(parts: Parts, gpus: int) -> None:
    """Wrong collectives of most GPUs, with no other findings about these, are of what connects them."""
    collective = [d for d, part in parts.items() if d and {f.check for f in part.findings} == {COLLECTIVES}]
    if gpus > 1 and len(collective) > SHARE_OF_FABRIC * gpus:
        for device in collective:
            parts[FABRIC].add(parts.pop(device))
