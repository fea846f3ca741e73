"""Parts of a node: its GPUs, links, network ports, what its GPUs share, and the node, with the
findings about each.

A GPU with a bad NVLink makes every link to and from it slow. Links of a node are therefore counted
per GPU: a GPU with several bad links is the part that all of them are about, and a single bad link
is a part of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from gpuworker.fleet import consequences
from gpuworker.fleet.consequences import Candidate, Rule
from gpuworker.fleet.inventory import Port
from gpuworker.fleet.part import (
    ARROW,
    BOTH_WAYS,
    COLLECTIVES,
    Part,
    Parts,
    Ranked,
    gpus_of,
    several,
)
from gpuworker.judgement.report import FAIL

FABRIC = "GPU fabric"  # part of a node: what connects its GPUs
# wrong collectives of more of a node's GPUs are the fabric's, not that of each receiver
SHARE_OF_FABRIC = 0.5
SHARE_OF_LINKS = 0.9  # bad links between more pairs of a node's GPUs are of no single GPU


def parts_of(findings: list, gpus: int, ports: Mapping[str, Port]) -> Parts:
    """`gpus`: the number of those under test."""
    parts, links = Parts(Part), defaultdict(list)
    candidates: dict[Rule, list[Candidate]] = defaultdict(list)
    for finding in findings:
        device = finding.device
        if rule := consequences.rule_of(device, finding):
            candidates[rule].append(Candidate(device, finding))
        elif ARROW in device:
            links[device].append(finding)
        else:
            parts[device].findings.append(finding)
    _add_links(parts, links, gpus)
    consequences.assign(parts, candidates, gpus)
    # without a cause
    missing = {name: parts.pop(name).findings for name in list(parts) if ARROW in name}
    _add_links(parts, missing, gpus)
    _join_fabric(parts, gpus)
    _join_gpus(parts, gpus)
    _join_ports(parts, ports)
    return parts


def _add_links(parts: Parts, of_direction: Mapping[str, list], gpus: int) -> None:
    """Add links, by direction, to the GPUs that they are about, or as parts of their own."""
    links: dict[tuple[str, str], list] = defaultdict(list)
    for name, about in of_direction.items():
        a, b = sorted(name.split(ARROW, 1))
        links[a, b] += about
    if (
        gpus > 2
        and len(links) >= SHARE_OF_LINKS * gpus * (gpus - 1) / 2
        and _are_alike(links.values())
    ):
        parts[several(gpus, gpus)].findings += [
            finding for about in links.values() for finding in about
        ]
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
        parts[f"{a}{BOTH_WAYS}{b}"].findings += about


def _are_alike(links: Iterable[list]) -> bool:
    """Whether most bad links fail, or none does: else those that fail show the GPU."""
    failed = [any(finding.verdict == FAIL for finding in about) for about in links]
    return not any(failed) or sum(failed) >= SHARE_OF_LINKS * len(failed)


def _join_fabric(parts: Parts, gpus: int) -> None:
    """Wrong collectives of most GPUs, with no other findings about these, are of what connects
    them.
    """
    collective = [
        d for d, part in parts.items() if d and {f.check for f in part.findings} == {COLLECTIVES}
    ]
    if gpus > 1 and len(collective) > SHARE_OF_FABRIC * gpus:
        for device in collective:
            parts[FABRIC].add(parts.pop(device))


def _join_gpus(parts: Parts, gpus: int) -> None:
    """Make one part of those that need the same act, if they are all GPUs of the node. A single
    worse one stays.
    """
    for firsts in _by_act({name: part for name, part in parts.items() if gpus_of(name)}).values():
        covered = {device for name in firsts for device in gpus_of(name)}
        if len(firsts) < 2 or len(covered) < gpus:
            continue
        least = min(first.rank for first in firsts.values())
        worst = [name for name, first in firsts.items() if first.rank == least]
        joined = [
            name for name in firsts if len(worst) > 1 or len(firsts) == 2 or name not in worst
        ]
        names = {device for name in joined for device in gpus_of(name)}
        _join(parts, joined, several(len(names), gpus))
    _take_from_node(parts, several(gpus, gpus))


def _join_ports(parts: Parts, ports: Mapping[str, Port]) -> None:
    """Make one part of the ports that need the same act, if no port of their kind is well."""
    bad = {name: part for name, part in parts.items() if name in ports or _is_of_port(part)}
    for firsts in _by_act(bad).values():
        kinds = {ports[name].kind for name in firsts if name in ports}
        alike = {name for name, port in ports.items() if not kinds or port.kind in kinds}
        well = [name for name in alike if ports[name].up and name not in firsts]
        if len(firsts) > 1 and not well:
            used = {*firsts, *(name for name, port in ports.items() if port.up)}
            _join(parts, list(firsts), several(len(firsts), len(used), "ports"))


def _is_of_port(part: Part) -> bool:
    return any(finding.kind.startswith("port-") for finding in part.findings)


def _by_act(parts: Mapping[str, Part]) -> dict[str, dict[str, Ranked]]:
    """Advice of an act -> parts that need it, with the finding that decides."""
    found: dict[str, dict[str, Ranked]] = defaultdict(dict)
    for name, part in parts.items():
        if part.findings:
            first = part.ranked()[0]
            found[first.act.advice][name] = first
    return found


def _join(parts: Parts, names: list[str], name: str) -> None:
    for each in names:
        parts[name].add(parts.pop(each))


def _take_from_node(parts: Parts, name: str) -> None:
    """Give what the node has, and needs the act of all its GPUs, to these."""
    if name not in parts or "" not in parts or not parts[""].findings:
        return
    advice, node = parts[name].ranked()[0].act.advice, parts[""].ranked()
    parts[name].findings += [each.finding for each in node if each.act.advice == advice]
    parts[""].findings = [each.finding for each in node if each.act.advice != advice]
    if not parts[""].findings:
        parts[name].add(parts.pop(""))
