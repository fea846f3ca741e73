"""Comparison of each GPU with the other GPUs of its node.

A check records what is compared as facts. `problems` judges them, on the node and for a reader of
its report.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpuworker.judgement.report import Evidence, Measurement


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


def record(
    evidence: Evidence,
    name: str,
    unit: str,
    amount: float,
    taken: Mapping[object, list[float]],
    kind: str,
    stalls: bool = False,
) -> None:
    """Record the seconds of each call of devices ("cuda" or "cpu", `kind`) that should be equal,
    each of which does `amount` (TFLOP, GB).

    `stalls`: also the share of its time that a device does not lose to single calls, which its
    median does not show. In a rehearsal other programs delay single calls, so a fifth of the calls
    must be slow. A rehearsal has one CPU, whose first test device stands in the measurements.
    """
    kept = {}
    for device, times in taken.items():
        usual = statistics.median(times)
        if kind == "cuda" or not device.index:
            label = str(device) if kind == "cuda" else kind
            evidence.measurements.append(Measurement(name, amount / usual, unit, label))
            evidence.samples[f"{name} {label}"] = times
        long = statistics.fmean(times) if kind == "cuda" else sorted(times)[4 * len(times) // 5]
        kept[str(device)] = usual / long
    typical, tolerance = typical_time_and_tolerance(kind)
    best = {str(device): amount / typical(times) for device, times in taken.items()}
    compare(evidence, name, unit, best, tolerance)
    if stalls:
        tolerance = GPUS if kind == "cuda" else STALLS_OF_REHEARSAL
        shares = {"tolerance": tolerance.name, "shares": kept}
        evidence.facts.setdefault("kept", {})[name] = shares


def compare(
    evidence: Evidence, what: str, unit: str, rates: dict[str, float], tolerance: Tolerance
) -> None:
    """Record the rates of devices (or links) that should be equal."""
    facts = {"unit": unit, "tolerance": tolerance.name, "rates": rates}
    evidence.facts.setdefault("compared", {})[what] = facts


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
