"""Suspects: one entry per part (a GPU, a link, a node) with all findings about it, and what to do.

A GPU with a bad NVLink makes every link to and from it slow. Links of a node are therefore counted per GPU: a GPU with
several bad links is the suspect of all of them, and a single bad link is a suspect of its own. What all GPUs of a node
have is one suspect, too, since they share its cause. A GPU that may draw less power than others is slow for that.
Collectives are as slow as the worst GPU or link among them, so their slowness belongs to it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuworker.accept.report import FAIL
from gpuworker.fleet.acts import CAPPED, POWER, RESEAT, RMA, SHARED, SLOW, TICKET, Act, act_for, is_of_power, urgency

ARROW = "→"
LEADING = re.compile(r"(cuda:\d+(?:→cuda:\d+)?|[a-z]\w*\d/\d+(?=: ))(?=[ :]|$)")  # a GPU, a link, a network port
DEVICE = re.compile(r"cuda:\d+")
RANK = re.compile(r"rank \d+ \(node \S+, (cuda:\d+)\)")
MOST_IN_TICKET = 12
FABRIC = "GPU fabric"  # part of a node: what connects its GPUs
SHARE_OF_FABRIC = 0.5  # wrong collectives of more of a node's GPUs are the fabric's, not that of each receiver
SHARE_OF_LINKS = 0.9  # bad links between more pairs of a node's GPUs are of no single GPU
COLLECTIVES = "collectives"  # name of the check


@dataclass(frozen=True)
class GpuIdentity:
    """What an RMA asks for; "" if the driver does not report it."""

    device: str
    uuid: str = ""
    serial: str = ""
    pci: str = ""


@dataclass
class Suspect:
    """One part with findings. An empty node is the whole fleet, an empty device the whole node."""

    verdict: str
    node: str
    device: str
    pod: str
    model: str
    uuid: str
    serial: str
    pci: str
    act: str
    advice: str
    why: str  # the finding that decides the act
    reasons: list[str]
    ticket: str = field(default="", repr=False)

    @property
    def part(self) -> str:
        return " ".join(text for text in (self.node, self.device) if text) or "fleet"


def listed_gpus(report: dict) -> Iterator[dict]:
    """The driver's data of each GPU that the environment check lists. A report may hold anything there."""
    for check in report["checks"]:
        gpus = check["facts"].get("gpus") if check["name"] == "environment" else None
        yield from (gpu for gpu in (gpus if isinstance(gpus, list) else []) if isinstance(gpu, dict))


def identities(report: dict) -> list[GpuIdentity]:
    """The GPUs that the environment check of a report lists."""
    found = []
    for gpu in listed_gpus(report):
        values = (gpu.get(key) for key in ("device", "uuid", "serial", "bus_id"))
        found.append(GpuIdentity(*(value[:100] if isinstance(value, str) else "" for value in values)))
    return found


def suspects(findings: Iterable, nodes: Iterable, worst_first: tuple[str, ...]) -> list[Suspect]:
    """All suspects, the worst first: by verdict, urgency of the act, and number of findings."""
    by_node, reports = defaultdict(list), {node.node: node for node in nodes}
    for finding in findings:
        by_node[finding.node].append(finding)
    found = []
    for name, several in by_node.items():
        parts = _parts(several, reports.get(name), worst_first).items() if name else _by_act(several)
        for device, about in parts:
            found.append(_suspect(name, device, about, reports.get(name), worst_first))
    found.sort(key=lambda pair: pair[0])  # stable: the findings are in natural order of their nodes
    return [suspect for _, suspect in found]


def _by_act(findings: list) -> list[tuple[str, list]]:
    """Findings about no node, such as pods without a report: one entry per act."""
    several: dict[str, list] = defaultdict(list)
    for finding in findings:
        several[act_for(finding.check, finding.found_by, finding.reason, finding.verdict).advice].append(finding)
    return [("", about) for about in several.values()]


def _parts(findings: list, node, worst_first: tuple[str, ...]) -> dict[str, list]:
    """Device or link -> its findings."""
    parts: dict[str, list] = defaultdict(list)
    links: dict[tuple[str, str], list] = defaultdict(list)
    for finding in findings:
        device = finding.device or _named_device(finding.reason, node.gpus if node else [])
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
    _join_shared(parts, gpus, worst_first)
    _to_capped(parts)
    _to_slow_links(parts, worst_first)
    return parts


def _are_alike(links: Iterable[list]) -> bool:
    """Whether most bad links fail, or none does: else those that fail show the GPU."""
    failed = [any(finding.verdict == FAIL for finding in about) for about in links]
    return not any(failed) or sum(failed) >= SHARE_OF_LINKS * len(failed)


def _several(count: int, gpus: int) -> str:
    """The name of the part that several GPUs of a node are."""
    return f"{'all ' * (count == gpus)}{count} GPUs"


def _is_slow_collective(finding) -> bool:
    """Of one node: those across nodes have the network among their causes."""
    named = finding.device or finding.found_by == "world"
    return finding.check == COLLECTIVES and not named and bool(SLOW.search(finding.reason))


def _to_slow_links(parts: dict[str, list], worst_first: tuple[str, ...]) -> None:
    """Give the node's slow collectives to the part that failed: links rather than others, the worst of several."""
    slow = [f for f in parts.get("", ()) if _is_slow_collective(f)]
    failed = {
        device: (not any(f.check == "links" for f in about), _ranked(about, worst_first)[0][:2])
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


def _join_shared(parts: dict[str, list], gpus: int, worst_first: tuple[str, ...]) -> None:
    """Make one part of those that need the same act, if they are all GPUs of the node. A single worse one stays."""
    by_act: dict[str, dict[str, int]] = defaultdict(dict)
    for device, about in parts.items():
        if DEVICE.search(device):
            first = _ranked(about, worst_first)[0]
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


class Ranked(NamedTuple):
    """A finding with its act, which sorts the worst and most urgent first."""

    rank: int  # of its verdict
    urgency: int
    finding: object
    act: Act


def _ranked(about: list, worst_first: tuple[str, ...]) -> list[Ranked]:
    """The findings about a part, the one that decides its act first."""
    causes = [finding for finding in about if CAPPED.search(finding.reason)]
    causes.sort(key=lambda finding: finding.found_by != "fleet")  # which has the watts of the others
    ranked = []
    for finding in about:
        act = act_for(finding.check, finding.found_by, finding.reason, finding.verdict)
        act = POWER if causes and is_of_power(finding.check, finding.reason) else act
        ranked.append(Ranked(worst_first.index(finding.verdict), urgency(act), finding, act))
    # A link is less than the GPU of which it shows something, and slow collectives are a consequence of either.
    ranked.sort(key=lambda r: (r.rank, _is_slow_collective(r.finding), r.urgency, ARROW in r.finding.device))
    if causes and ranked[0].act is POWER:  # the cause is more of a reason than the slowness
        first = [each for cause in causes for each in ranked if each.finding is cause]
        ranked = [Ranked(ranked[0].rank, *first[0][1:]), *first[1:]] + [each for each in ranked if each not in first]
    return ranked


def _named_device(reason: str, gpus: list[GpuIdentity]) -> str:
    """The device that a reason starts with ("cuda:3 is slow: …"), of the rank that it names, or of the UUID or the PCI
    address in it ("Xid 79 of 0000:3b:00")."""
    if found := LEADING.match(reason) or RANK.match(reason):
        return found[1]
    named = [g.device for g in gpus if (g.uuid and g.uuid in reason) or (g.pci and g.pci.partition(".")[0] in reason)]
    return named[0] if len(named) == 1 else ""


def _suspect(name: str, device: str, about: list, node, worst_first: tuple[str, ...]) -> tuple[tuple, Suspect]:
    ranked = _ranked(about, worst_first)
    rank, _, _, act = ranked[0]
    shared = device.endswith(" GPUs")
    act = SHARED if shared and act.verb in (RMA, RESEAT, TICKET) else act
    gpu = _identity(device, node.gpus if node else [])
    index = device.removeprefix("cuda:")
    models = node.models if node else []
    whole = models[int(index)] if index.isdecimal() and int(index) < len(models) else " + ".join(sorted(set(models)))
    reasons = _of_devices([each.finding for each in ranked]) if shared else [sentence(each.finding) for each in ranked]
    suspect = Suspect(
        worst_first[rank], name, device, node.pod if node else "", whole, gpu.uuid, gpu.serial, gpu.pci,
        act.verb, act.advice, reasons[0], reasons,
    )  # fmt: skip
    suspect.ticket = ticket(suspect, node.started if node else "")
    return (rank, urgency(act), -len(about)), suspect


def _identity(device: str, gpus: list[GpuIdentity]) -> GpuIdentity:
    """Of a GPU, or of both ends of a link."""
    found = [gpu for name in device.split("↔") for gpu in gpus if gpu.device == name]
    values = ([getattr(gpu, field) for gpu in found] for field in ("uuid", "serial", "pci"))
    return GpuIdentity(device, *(", ".join(filter(None, each)) for each in values))


def _of_devices(findings: list) -> list[str]:
    """One sentence for what several devices have, with all of them."""
    devices: dict[str, list[str]] = defaultdict(list)
    for finding in findings:
        name = "" if ARROW in finding.device else finding.device
        devices[sentence(finding)] += [name] if name else []
    return [f"{', '.join(dict.fromkeys(names))}: {text}" if names else text for text, names in devices.items()]


def sentence(finding) -> str:
    check, other = finding.check and f"{finding.check}: ", ""
    if finding.device and ARROW in finding.device:
        other = f"{finding.device}: "
    return f"{check}{other}{finding.reason} [{finding.found_by}]"


def ticket(suspect: Suspect, started: str) -> str:
    """The text of a ticket or an RMA."""
    lines = [f"GPU acceptance: {suspect.verdict} of {suspect.part}", f"Wanted: {suspect.act}. {suspect.advice}"]
    for name, value in (
        ("Node", suspect.node), ("Device", suspect.device), ("Model", suspect.model), ("GPU UUID", suspect.uuid),
        ("Serial", suspect.serial), ("PCI address", suspect.pci), ("Pod", suspect.pod), ("Tested", started),
    ):  # fmt: skip
        if value:
            lines.append(f"{name}: {value}")
    lines += [f"- {reason}" for reason in suspect.reasons[:MOST_IN_TICKET]]
    if len(suspect.reasons) > MOST_IN_TICKET:
        lines.append(f"- and {len(suspect.reasons) - MOST_IN_TICKET} more findings")
    return "\n".join(lines)
