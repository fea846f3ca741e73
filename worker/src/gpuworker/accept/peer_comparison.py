"""Comparison of each GPU with the other GPUs of its node.

A check records what is compared as facts. `problems` judges them, on the node and for a reader of
its report.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpuworker.judgement.report import Evidence


@dataclass(frozen=True)
class Tolerance:
    """Shares of the median of the others below which a device is a warning, and a failure (None:
    never).
    """

    name: str
    warn: float
    fail: float | None


# Healthy GPUs of one model differ by 5 % and more (ml-engineering); gpu-fryer's default within a
# node is 10 %.
GPUS = Tolerance("gpus", 0.90, 0.80)
# Other pods use the memory and the cores of the host as well, so only a WARN, and for one core only
# a large difference: a busy sibling thread takes half of it, the lowest clock leaves a quarter.
HOST_MEMORY = Tolerance("host memory", 0.80, None)
CORES = Tolerance("cores", 0.40, None)
# The test devices of a rehearsal share cores with other processes: only large differences count.
REHEARSAL = Tolerance("rehearsal", 0.30, 0.15)
STALLS_OF_REHEARSAL = Tolerance("stalls of a rehearsal", 0.10, None)
# paths differ: one switch, one socket, two sockets
PCIE_PEERS = Tolerance("pcie peers", 0.40, None)
TOLERANCES = {
    each.name: each
    for each in (GPUS, HOST_MEMORY, CORES, REHEARSAL, STALLS_OF_REHEARSAL, PCIE_PEERS)
}


def typical_time_and_tolerance(device: str) -> tuple[Callable[[Sequence[float]], float], Tolerance]:
    """The statistic that represents the times of one device ("cuda" | "cpu"), and the tolerance.

    The median for GPUs. The minimum in a rehearsal, because other processes on the CPU delay single
    calls.
    """
    return (statistics.median, GPUS) if device == "cuda" else (min, REHEARSAL)


def stalls(evidence: Evidence, what: str, taken: dict[str, list[float]], kind: str) -> None:
    """Record the share of its time that each device does not lose to single calls, which its median
    does not show.

    `kind`: "cuda" or "cpu". In a rehearsal other programs delay single calls, so a fifth of the
    calls must be slow.
    """
    tolerance = GPUS if kind == "cuda" else STALLS_OF_REHEARSAL
    kept = {}
    for name, times in taken.items():
        long = statistics.fmean(times) if kind == "cuda" else sorted(times)[4 * len(times) // 5]
        kept[name] = statistics.median(times) / long
    evidence.facts.setdefault("kept", {})[what] = {"tolerance": tolerance.name, "shares": kept}


def compare(
    evidence: Evidence, what: str, unit: str, rates: dict[str, float], tolerance: Tolerance
) -> None:
    """Record the rates of devices (or links) that should be equal."""
    evidence.facts.setdefault("compared", {})[what] = {
        "unit": unit,
        "tolerance": tolerance.name,
        "rates": rates,
    }


def problems(evidence: Evidence, models: Sequence[str]) -> None:
    """Add each device that is slower than others of its model, or that stalls. One device alone
    is not compared.
    """
    for what, facts in evidence.facts.get("compared", {}).items():
        rates, unit = facts["rates"], facts["unit"]
        for name, rate in rates.items():
            peers = [
                rates[other]
                for other in rates
                if other != name and _models(other, models) == _models(name, models)
            ]
            if not peers:
                continue
            usual = statistics.median(peers)
            text = f"{name} is slow: {what} {rate:.4g} {unit} is {rate / usual:.0%} of the median of its peers"
            _judge(evidence, "slow", text, name, what, rate / usual, facts)
    for what, facts in evidence.facts.get("kept", {}).items():
        for name, share in facts["shares"].items():
            text = f"{name} stalls: {what} loses {1 - share:.0%} of its time in calls that take longer than the median"
            _judge(evidence, "stall", text, name, what, share, facts)


def _models(name: str, models: Sequence[str]) -> list[str]:
    """Of a device, or of both ends of a link."""
    ends = (end.removeprefix("cuda:") for end in name.split("→"))
    return [models[int(end)] for end in ends if end.isdecimal() and int(end) < len(models)]


def _judge(
    evidence: Evidence, kind: str, text: str, name: str, what: str, share: float, facts: Mapping
) -> None:
    tolerance = TOLERANCES[facts["tolerance"]]
    if share < tolerance.warn:
        failed = tolerance.fail is not None and share < tolerance.fail
        (evidence.fail if failed else evidence.warn)(kind, text, name, measure=what, share=share)


def rounds_of_pairs(count: int) -> list[list[tuple[int, int]]]:
    """All pairs of 0 … count-1 in rounds of disjoint pairs (the circle method of tournaments)."""
    ring = list(range(count)) + [-1] * (count % 2)  # -1 pauses
    found = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        found.append([(min(pair), max(pair)) for pair in pairs if -1 not in pair])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found
