"""Findings of a judged report, on the node and device that they are about."""

from __future__ import annotations

from gpuworker.accept.judge import Judged
from gpuworker.fleet.fleet_report import Finding
from gpuworker.fleet.inventory import GpuIdentity, identities
from gpuworker.judgement.report import NODE, WORLD, Problem, Report

RANK, OF_NODE = "rank ", "node "  # parts of a problem


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
    nodes = (
        f"{len(names)} nodes ({names[0]} … {names[-1]})" if len(names) > 2 else " and ".join(names)
    )
    return f"{size} rank{'s' * (size != 1)} on {nodes}"


def findings_of(judged: Judged) -> list[Finding]:
    """One finding per problem and per place that it is about."""
    report, found = judged.report, []
    gpus = identities(report)
    for check in judged.checks:
        found_by = report.scope if check.name else "coverage"
        prefix = f"{world_name(report)}: " if report.scope == WORLD and not check.name else ""
        for problem in check.problems:
            for node, device in _places(report, problem, gpus):
                words = prefix + problem.reason.removeprefix(f"{device}: ")
                found.append(
                    Finding(
                        problem.verdict,
                        problem.kind,
                        words,
                        node,
                        device,
                        check.name,
                        found_by,
                        problem.numbers,
                    )
                )
    return found


def _places(report: Report, problem: Problem, gpus: list[GpuIdentity]) -> list[tuple[str, str]]:
    """Node and device: of a node one, the only part that it names; of a world every rank and
    node.
    """
    if report.scope == WORLD:
        return _world_places(report, problem)
    return [(report.node, _device(report, problem, gpus))]


def _device(report: Report, problem: Problem, gpus: list[GpuIdentity]) -> str:
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
        for gpu in gpus
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
