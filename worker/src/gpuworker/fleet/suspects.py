"""Suspects: one entry per part (a GPU, a link, a node) with all findings about it, and what to
do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuworker.fleet.inventory import GpuIdentity, Port, model_of
from gpuworker.fleet.part import ARROW, BOTH_WAYS, Part
from gpuworker.fleet.parts import parts_of
from gpuworker.judgement.kinds import (
    NONE,
    RESEAT,
    RMA,
    SHARED,
    SHARED_PORTS,
    TICKET,
    urgency,
)
from gpuworker.judgement.report import WORST_FIRST


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


def suspects(
    findings: Iterable,
    nodes: Iterable,
    ports: Mapping[str, Mapping[str, Port]],
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
        gpus = node.gpus if node else []
        count = len(node.models) if node else 0
        parts = parts_of(several, count, ports.get(name, {})).items() if name else _by_act(several)
        found += [
            _suspect(name, device, part, node, gpus) for device, part in parts if part.findings
        ]
    found.sort(key=lambda pair: pair[0])  # stable: the findings are in natural order of their nodes
    return [suspect for _, suspect in found]


def _by_act(findings: list) -> list[tuple[str, Part]]:
    """Findings about no node, such as pods without a report: one entry per act."""
    several: dict[str, Part] = defaultdict(Part)
    for finding in findings:
        several[finding.act.advice].findings.append(finding)
    return [("", part) for part in several.values()]


def _suspect(
    name: str,
    device: str,
    part: Part,
    node,
    gpus: list[GpuIdentity],
) -> tuple[tuple, Suspect]:
    found = part.ranked()
    rank = min(
        [found[0].rank, *(WORST_FIRST.index(finding.verdict) for _, finding in part.consequences)]
    )
    act, own = found[0].act, [each.finding for each in found]
    joined = device.endswith((" GPUs", " ports"))
    if joined and act.verb in (RMA, RESEAT, TICKET):
        act = SHARED if device.endswith(" GPUs") else SHARED_PORTS
    gpu = _identity(device, gpus)
    model = model_of(device, node.models) if node and node.models else ""
    reasons = _of_devices(own) if joined else [sentence(finding) for finding in own]
    shown = next((finding for finding in own if finding.measure), None)
    suspect = Suspect(
        WORST_FIRST[rank], name, device, node.pod if node else "", model, gpu.uuid, gpu.serial, gpu.pci,
        act.verb, act.advice, reasons[0], reasons + _consequences(part),
        own[0].kind, shown.check if shown else "", shown.measure if shown else "",
    )  # fmt: skip
    return (rank, part.danger, urgency(act), -len(part.findings) - len(part.consequences)), suspect


def _consequences(part: Part) -> list[str]:
    """What follows from a part elsewhere, and why."""
    by_words: dict[str, list] = defaultdict(list)
    for words, finding in part.consequences:
        by_words[words].append(finding)
    return [
        f"consequence, {words}: {text}"
        for words, about in by_words.items()
        for text in _of_devices(about)
    ]


def _identity(device: str, gpus: list[GpuIdentity]) -> GpuIdentity:
    """Of a GPU, or of both ends of a link. One that the driver does not list has its address."""
    if device.startswith("GPU ") and ":" in device:
        return GpuIdentity(device, pci=device.removeprefix("GPU "))
    found = [gpu for name in device.split(BOTH_WAYS) for gpu in gpus if gpu.device == name]
    values = ([getattr(gpu, field) for gpu in found] for field in ("uuid", "serial", "pci"))
    return GpuIdentity(device, *(", ".join(filter(None, each)) for each in values))


def _of_devices(findings: list) -> list[str]:
    """One sentence for what several devices have, with all of them."""
    devices: dict[str, list[str]] = defaultdict(list)
    for finding in findings:
        name = "" if ARROW in finding.device else finding.device
        devices[sentence(finding)] += [name] if name else []
    return [
        f"{', '.join(dict.fromkeys(names))}: {text}" if names else text
        for text, names in devices.items()
    ]


def sentence(finding) -> str:
    check, other = finding.check and f"{finding.check}: ", ""
    if finding.device and ARROW in finding.device:
        other = f"{finding.device}: "
    return f"{check}{other}{finding.reason} [{finding.found_by}]"
