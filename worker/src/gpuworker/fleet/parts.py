"""Parts of a node: its GPUs, links, network ports, what its GPUs share, and the node, with the findings about each.

A GPU with a bad NVLink makes every link to and from it slow. Links of a node are therefore counted per GPU: a GPU with
several bad links is the part that all of them are about, and a single bad link is a part of its own. What all GPUs of
a node have is one part, too, since they share its cause. A GPU that may draw less power than others is slow for that.
Collectives are as slow as the worst GPU or link among them, so their slowness belongs to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gpuworker.accept.report import FAIL
from gpuworker.fleet.acts import CAPPED, is_of_power
from gpuworker.fleet.places import ARROW, DEVICE, named_device
from gpuworker.fleet.ranking import COLLECTIVES, is_slow_collective, ranked

FABRIC = "GPU fabric"  # part of a node: what connects its GPUs
SHARE_OF_FABRIC = 0.5  # wrong collectives of more of a node's GPUs are the fabric's, not that of each receiver
SHARE_OF_LINKS = 0.9  # bad links between more pairs of a node's GPUs are of no single GPU


def parts_of(findings: list, node) -> dict[str, list]:
    """Device or link -> its findings."""
    parts: dict[str, list] = defaultdict(list)
    links: dict[tuple[str, str], list] = defaultdict(list)
    for finding in findings:
        device = finding.device or named_device(finding.reason, node.gpus if node else [])
        if ARROW in device:
            a, b = sorted(device.split(ARROW, 1))
            links[a, b].append(finding)
        else:
            parts[device].append(finding)
    gpus = len(node.models) if node else 0
    if gpus > 2 and len(links) >= SHARE_OF_LINKS * gpus * (gpus - 1) / 2 and _are_alike(links.values()):
        parts[_several(gpus, gpus)] = [finding for about in links.values() for finding in about]
        links.clear()
    while links:
        peers: dict[str, int] = defaultdict(int)
        for pair in links:
            for device in pair:
                peers[device] += 1
        worst = max(peers, key=lambda device: (peers[device] + (device in parts), device in parts))
        if peers[worst] + (worst in parts) < 2:
            break
        for pair in [pair for pair in links if worst in pair]:
            parts[worst] += links.pop(pair)
    for (a, b), about in links.items():
        parts[f"{a}↔{b}"] += about
    collective = [d for d, about in parts.items() if d and {f.check for f in about} == {COLLECTIVES}]
    if gpus > 1 and len(collective) > SHARE_OF_FABRIC * gpus:
        parts[FABRIC] = [finding for device in collective for finding in parts.pop(device)]
    _join_shared(parts, gpus)
    _to_capped(parts)
    _to_slow_links(parts)
    return parts


def _are_alike(links: Iterable[list]) -> bool:
    """Whether most bad links fail, or none does: else those that fail show the GPU."""
    failed = [any(finding.verdict == FAIL for finding in about) for about in links]
    return not any(failed) or sum(failed) >= SHARE_OF_LINKS * len(failed)


def _several(count: int, gpus: int) -> str:
    """The name of the part that several GPUs of a node are."""
    return f"{'all ' * (count == gpus)}{count} GPUs"


def _to_slow_links(parts: dict[str, list]) -> None:
    """Give the node's slow collectives to the part that failed: links rather than others, the worst of several."""
    slow = [f for f in parts.get("", ()) if is_slow_collective(f)]
    failed = {
        device: (not any(f.check == "links" for f in about), ranked(about)[0][:2])
        for device, about in parts.items()
        if (DEVICE.search(device) or device.endswith(" GPUs")) and any(f.verdict == FAIL for f in about)
    }
    if slow and failed:
        _move(parts, slow, min(failed, key=failed.__getitem__))


def _to_capped(parts: dict[str, list]) -> None:
    """Give the node's own findings that less power explains to the one part that has less."""
    capped = [device for device, about in parts.items() if device and any(CAPPED.search(f.reason) for f in about)]
    if len(capped) != 1 or "" not in parts:
        return
    moved = [f for f in parts[""] if "differ in power limit" in f.reason or is_of_power(f.check, f.reason)]
    _move(parts, moved, capped[0])


def _move(parts: dict[str, list], moved: list, device: str) -> None:
    """Give findings of the node itself to one of its parts."""
    parts[device] += moved
    if rest := [finding for finding in parts.pop("") if finding not in moved]:
        parts[""] = rest


def _join_shared(parts: dict[str, list], gpus: int) -> None:
    """Make one part of those that need the same act, if they are all GPUs of the node. A single worse one stays."""
    by_act: dict[str, dict[str, int]] = defaultdict(dict)
    for device, about in parts.items():
        if DEVICE.search(device):
            first = ranked(about)[0]
            by_act[first.act.advice][device] = first.rank
    for ranks in by_act.values():
        covered = {device for part in ranks for device in DEVICE.findall(part)}
        if len(ranks) < 2 or len(covered) < gpus:
            continue
        worst = [part for part, rank in ranks.items() if rank == min(ranks.values())]
        joined = [part for part in ranks if len(worst) > 1 or len(ranks) == 2 or part not in worst]
        names = {device for part in joined for device in DEVICE.findall(part)}
        several = _several(len(names), gpus)
        parts[several] = parts.get(several, []) + [finding for part in joined for finding in parts.pop(part)]
