"""Suspects: one entry per part (a GPU, a link, a node) with all findings about it, and what to do.

Causes: rows of the page and of the terminal, in the order of danger. What several nodes have is one
row, with what these nodes have in common.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuworker.judgement.findings import Finding, GpuIdentity, Port, model_of
from gpuworker.judgement.kinds import (
    KINDS,
    NONE,
    RESEAT,
    RMA,
    SHARED,
    SHARED_PORTS,
    SLOWER,
    TICKET,
    urgency,
)
from gpuworker.judgement.parts import ARROW, BOTH_WAYS, Part, parts_of
from gpuworker.judgement.report import WORST_FIRST

ALIKE = 3  # nodes with the same cause from which on it is one row
MOST_NAMED = 3
LEAST_SHARE = 0.25  # of the nodes with a property, for it to be what a row has in common


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
    kind: str  # of this finding
    check: str  # with the measure, of the first finding that a number shows; or both empty
    measure: str

    @property
    def part(self) -> str:
        return " ".join(text for text in (self.node, self.device) if text) or "fleet"


@dataclass(frozen=True)
class Cause:
    """One suspect, or the same on several nodes."""

    verdict: str
    act: str
    title: str
    where: str
    common: list[str]  # of its nodes, and not of all nodes
    suspects: list[int]  # places in the list of suspects


def suspects(
    findings: Iterable[Finding], nodes: Iterable, ports: Mapping[str, Mapping[str, Port]]
) -> list[Suspect]:
    """All suspects, the worst first: by verdict, danger, urgency of the act, and number of
    findings.

    What needs no act makes no suspect. `ports`: of each node.
    """
    by_node, reports = defaultdict(list), {node.node: node for node in nodes}
    for finding in findings:
        if finding.act.verb != NONE:
            by_node[finding.node].append(finding)
    found = []
    for name, several in by_node.items():
        node = reports.get(name)
        count = len(node.models) if node else 0
        parts = parts_of(several, count, ports.get(name, {})).items() if name else _by_act(several)
        found += [_suspect(name, device, part, node) for device, part in parts if part.findings]
    found.sort(key=lambda pair: pair[0])  # stable: the findings are in natural order of their nodes
    return [suspect for _, suspect in found]


def _by_act(findings: list[Finding]) -> list[tuple[str, Part]]:
    """Findings about no node, such as pods without a report: one entry per act."""
    several: dict[str, Part] = defaultdict(Part)
    for finding in findings:
        several[finding.act.advice].findings.append(finding)
    return [("", part) for part in several.values()]


def _suspect(name: str, device: str, part: Part, node) -> tuple[tuple, Suspect]:
    """The place in the order, and the suspect."""
    found, follows = part.ranked(), [finding for _, finding in part.consequences]
    act, own = found[0].act, [each.finding for each in found]
    rank = min(WORST_FIRST.index(finding.verdict) for finding in own + follows)
    joined = device.endswith((" GPUs", " ports"))
    if joined and act.verb in (RMA, RESEAT, TICKET):
        act = SHARED if device.endswith(" GPUs") else SHARED_PORTS
    gpu = _identity(device, node.gpus if node else [])
    model = model_of(device, node.models) if node and node.models else ""
    reasons = _of_devices(own) if joined else [_sentence(finding) for finding in own]
    causing: dict[str, list[Finding]] = defaultdict(list)
    for words, finding in part.consequences:
        causing[words].append(finding)
    consequences = [
        f"consequence, {words}: {text}" for words in causing for text in _of_devices(causing[words])
    ]
    shown = next((finding for finding in own if finding.measure), None)
    suspect = Suspect(
        WORST_FIRST[rank], name, device, node.pod if node else "", model, gpu.uuid, gpu.serial,
        gpu.pci, act.verb, act.advice, reasons[0], reasons + consequences, own[0].kind,
        shown.check if shown else "", shown.measure if shown else "",
    )  # fmt: skip
    danger = min(KINDS[finding.kind].danger for finding in own)
    return (rank, danger, urgency(act), -len(own) - len(follows)), suspect


def _identity(device: str, gpus: list[GpuIdentity]) -> GpuIdentity:
    """Of a GPU, or of both ends of a link. One that the driver does not list has its address."""
    if device.startswith("GPU ") and ":" in device:
        return GpuIdentity(device, pci=device.removeprefix("GPU "))
    found = [gpu for name in device.split(BOTH_WAYS) for gpu in gpus if gpu.device == name]
    values = ([getattr(gpu, field) for gpu in found] for field in ("uuid", "serial", "pci"))
    return GpuIdentity(device, *(", ".join(filter(None, each)) for each in values))


def _of_devices(findings: list[Finding]) -> list[str]:
    """One sentence for what several devices have, with all of them."""
    devices: dict[str, list[str]] = defaultdict(list)
    for finding in findings:
        name = "" if ARROW in finding.device else finding.device
        devices[_sentence(finding)] += [name] if name else []
    return [
        f"{', '.join(dict.fromkeys(names))}: {text}" if names else text
        for text, names in devices.items()
    ]


def _sentence(finding: Finding) -> str:
    check = f"{finding.check}: " * bool(finding.check)
    link = f"{finding.device}: " * (ARROW in finding.device)
    return f"{check}{link}{finding.reason} [{finding.found_by}]"


def causes(
    suspects: Sequence[Suspect], nodes: Iterable, racks: Mapping[str, list[str]]
) -> list[Cause]:
    """A row is where the first of its suspects is."""
    groups: dict[tuple, list[int]] = defaultdict(list)
    for place, each in enumerate(suspects):
        what = ("slower", each.check) if each.kind in SLOWER else (each.kind, each.measure)
        groups[each.verdict, *what, each.act, each.advice].append(place)
    rows = []
    for places in groups.values():
        shared = len({suspects[place].node for place in places}) >= ALIKE
        rows += [places] if shared else [[place] for place in places]
    properties = _properties(nodes, racks)
    order = [name for names in racks.values() for name in names]
    return [_cause(row, suspects, properties, order) for row in sorted(rows)]


def _cause(
    row: list[int], suspects: Sequence[Suspect], properties: Mapping, order: list[str]
) -> Cause:
    several = [suspects[place] for place in row]
    first, own, common = several[0], {each.node for each in several}, []
    where = first.part
    if len(own) > 1:
        names = [name for name in order if name in own]
        more = " …" * (len(names) > MOST_NAMED)
        where = f"{len(names)} nodes: {', '.join(names[:MOST_NAMED])}{more}"
        common = [
            f"{key} {value} ({len(own)} of its {len(having)} nodes)"
            for (key, value), having in properties.items()
            if own <= having and len(own) >= LEAST_SHARE * len(having)
        ]
    return Cause(first.verdict, first.act, _title(several), where, common, row)


def _title(several: Sequence[Suspect]) -> str:
    """What they are, and the number that shows it; or the check, if the numbers differ."""
    kinds, measures = ({getattr(s, key) for s in several} for key in ("kind", "measure"))
    title = KINDS[several[0].kind].title if len(kinds) == 1 else "slow"
    shown = measures.pop() if len(measures) == 1 else several[0].check
    return f"{title}: {shown}" if shown else title


def racks_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Rack -> its nodes: names that are equal up to their last part, as gpu-r12-03 and gpu-r12-04.

    One rack, "", if the names show none.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        found[re.sub(r"(^|[-_])[^-_]*$", "", name.partition(".")[0])].append(name)
    alone = sum(len(nodes) == 1 for nodes in found.values())
    if len(found) < 2 or 2 * alone > len(found):
        return {"": [name for nodes in found.values() for name in nodes]} if found else {}
    return dict(found)


def _properties(nodes: Iterable, racks: Mapping[str, list[str]]) -> dict[tuple, set[str]]:
    """(property, value) -> the nodes that have it, without what more than half of all have."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for rack, names in racks.items():
        found["rack", rack] |= set(names)
    for node in nodes:
        for key, value in [*node.facts.items(), *(("model", model) for model in node.models)]:
            found[key, value].add(node.node)
    most = sum(map(len, racks.values())) / 2
    rare = {key: names for key, names in found.items() if len(names) <= most}
    return dict(sorted(rare.items(), key=lambda item: len(item[1])))
