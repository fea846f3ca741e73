"""Findings: the problems of judged reports on the node and the part that they are about. And what
a report lists of these parts: GPUs and network ports.

Any JSON may stand in the facts of a report.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gpuworker.judgement.judge import Judged
from gpuworker.judgement.kinds import Act, act_of
from gpuworker.judgement.report import NODE, WORLD, Problem, Report

RANK, OF_NODE = "rank ", "node "  # parts of a problem
LONGEST = 100  # characters
MOST_GBPS = 1e6


@dataclass(frozen=True)
class Finding:
    """One problem and the part that has it. An empty node is the whole fleet. `reason` is for
    people.
    """

    verdict: str
    kind: str  # of judgement.kinds.KINDS
    reason: str
    node: str = ""
    device: str = ""
    check: str = ""
    found_by: str = "node"
    numbers: dict[str, object] = field(default_factory=dict, hash=False)

    @property
    def measure(self) -> str:
        """The number that shows it, "" if none does."""
        return str(self.numbers.get("measure", ""))

    @property
    def place(self) -> str:
        """Node, device and check; "" for the whole fleet."""
        return " ".join(part for part in (self.node, self.device, self.check) if part)

    @property
    def act(self) -> Act:
        return act_of(self.kind, self.check, self.measure, self.verdict)


@dataclass(frozen=True)
class GpuIdentity:
    """What an RMA asks for; "" if the driver does not report it."""

    device: str
    uuid: str = ""
    serial: str = ""
    pci: str = ""


class Port(NamedTuple):
    """A network port."""

    kind: str  # of its adapter
    up: bool
    rate_gbps: float


def gpu_models(report: Report) -> list[str]:
    """The node's GPU models by index; ["cpu"] in a rehearsal."""
    return ["cpu"] if report.requested.device == "cpu" else report.models


def model_of(device: str, models: list[str]) -> str:
    """The model of a device such as "cuda:3"; for a whole node or a pair, all models of the
    node.
    """
    if device.startswith("cuda:") and device[5:].isdecimal() and int(device[5:]) < len(models):
        return models[int(device[5:])]
    return " + ".join(sorted(set(models))) or "unknown"


def text(item: dict, key: str) -> str:
    """A text of an item, "" if it has none."""
    value = item.get(key)
    return value[:LONGEST] if isinstance(value, str) else ""


def number(item: dict, key: str, most: float) -> float:
    """A number of an item, 0 if it has none or one that cannot be."""
    value = item.get(key)
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < most
    return float(value) if known else 0.0


def identities(report: Report) -> list[GpuIdentity]:
    """The GPUs that the environment check of a report lists."""
    keys = ("device", "uuid", "serial", "bus_id")
    return [GpuIdentity(*(text(gpu, key) for key in keys)) for gpu in report.listed("gpus")]


def ports_of(report: Report) -> dict[str, Port]:
    """The ports that it lists."""
    return {
        name: Port(kind, port.get("up") is True, number(port, "rate_gbps", MOST_GBPS))
        for port in report.listed("ports")
        if (name := text(port, "name")) and (kind := text(port, "kind"))
    }


def subject(report: Report) -> str:
    """The node of a report; all nodes and checks of a report of scope "world". One report per
    subject counts.
    """
    if report.scope == NODE:
        return report.node
    nodes = " ".join(each.node for each in report.world.nodes)
    return f"{nodes}: {' '.join(report.requested.checks)}"


def world_name(report: Report) -> str:
    """A short name of the world for people."""
    names, size = [each.node for each in report.world.nodes], report.world.size
    nodes = " and ".join(names)
    if len(names) > 2:
        nodes = f"{len(names)} nodes ({names[0]} … {names[-1]})"
    return f"{size} rank{'s' * (size != 1)} on {nodes}"


def findings_of(judged: Judged) -> list[Finding]:
    """One finding per problem and per place that it is about."""
    report, found = judged.report, []
    world = report.scope == WORLD
    for check in judged.checks:
        found_by = report.scope if check.name else "coverage"
        prefix = f"{world_name(report)}: " if world and not check.name else ""
        for its in check.problems:
            places = _world_places(report, its) if world else [(report.node, _device(report, its))]
            for node, device in places:
                words = prefix + its.reason.removeprefix(f"{device}: ")
                place = node, device, check.name, found_by
                found.append(Finding(its.verdict, its.kind, words, *place, its.numbers))
    return found


def _device(report: Report, problem: Problem) -> str:
    """The part of the node; "" for the whole node, as for what several parts have at once."""
    if volume := problem.numbers.get("volume"):
        return str(volume)
    if len(problem.parts) != 1:
        return ""
    (part,) = problem.parts
    rank = part.removeprefix(RANK)
    if part.startswith(RANK) and rank.isdecimal():  # within a node each rank has its GPU
        return f"cuda:{rank}" if report.requested.device == "cuda" else ""
    named = [
        gpu.device
        for gpu in identities(report)
        if part in (gpu.device, gpu.uuid) or (gpu.pci and _same_pci(part, gpu.pci))
    ]
    return named[0] if len(named) == 1 else part * _has_a_name(part)


def _same_pci(one: str, other: str) -> bool:
    """Addresses with and without the function: an Xid has 0000:3b:00, the bus 0000:3b:00.0."""
    return one.partition(".")[0].lower() == other.partition(".")[0].lower()


def _has_a_name(part: str) -> bool:
    """A GPU, a link or a port; not an address of unknown place, and no core of the host."""
    return part.startswith(("cuda:", "GPU ", "cpu")) or "/" in part


def _world_places(report: Report, problem: Problem) -> list[tuple[str, str]]:
    """Node and device of every rank, and every node, that a problem is about; the fleet if it
    names none.
    """
    found = []
    for node in report.world.nodes:
        for index, rank in enumerate(sorted(node.ranks)):
            if f"{RANK}{rank}" in problem.parts:
                device = f"cuda:{index}" if report.requested.device == "cuda" else f"{RANK}{rank}"
                found.append((rank, node.node, device))
        if f"{OF_NODE}{node.node}" in problem.parts:
            found.append((-1, node.node, ""))
    return [(node, device) for _, node, device in sorted(found)] or [("", "")]
