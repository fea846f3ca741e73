"""Comparison of each GPU with the other GPUs of its node."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuworker.accept.check_spec import Evidence


@dataclass(frozen=True)
class Tolerance:
    """Shares of the median of the others below which a device is a warning, and a failure (None: never)."""

    warn: float
    fail: float | None


# Healthy GPUs of one model differ by 5 % and more (ml-engineering); gpu-fryer's default within a node is 10 %.
GPUS = Tolerance(0.90, 0.80)
# Other pods use the memory and the cores of the host as well, so only a WARN, and for one core only a large difference:
# a busy sibling thread takes half of it, the lowest clock leaves a quarter.
HOST_MEMORY = Tolerance(0.80, None)
CORES = Tolerance(0.40, None)
# The test devices of a rehearsal share cores with other processes: only large differences count.
REHEARSAL = Tolerance(0.30, 0.15)
STALLS_OF_REHEARSAL = Tolerance(0.10, None)


def typical_time_and_tolerance(device: str) -> tuple[Callable[[Sequence[float]], float], Tolerance]:
    """The statistic that represents the times of one device ("cuda" | "cpu"), and the tolerance.

    The median for GPUs. The minimum in a rehearsal, because other processes on the CPU delay single calls.
    """
    return (statistics.median, GPUS) if device == "cuda" else (min, REHEARSAL)


def stalls(evidence: Evidence, what: str, taken: dict[str, list[float]], kind: str) -> None:
    """Add to the evidence each device that loses time to some calls, which its median does not show.

    `kind`: "cuda" or "cpu". In a rehearsal other programs delay single calls, so a fifth of the calls must be slow.
    """
    tolerance = GPUS if kind == "cuda" else STALLS_OF_REHEARSAL
    for name, times in taken.items():
        long = statistics.fmean(times) if kind == "cuda" else sorted(times)[4 * len(times) // 5]
        share = statistics.median(times) / long
        if share < tolerance.warn:
            text = f"{name} stalls: {what} loses {1 - share:.0%} of its time in calls that take longer than the median"
            failed = tolerance.fail is not None and share < tolerance.fail
            (evidence.failures if failed else evidence.warnings).append(text)


def compare(evidence: Evidence, what: str, unit: str, rates: dict[str, float], tolerance: Tolerance) -> None:
    """Add to the evidence each device (or link) that is slower than the others. One device alone is not compared."""
    for name, rate in rates.items():
        others = [value for other, value in rates.items() if other != name]
        if not others:
            return
        usual = statistics.median(others)
        if rate < tolerance.warn * usual:
            text = f"{name} is slow: {what} {rate:.4g} {unit} is {rate / usual:.0%} of the median of its peers"
            failed = tolerance.fail is not None and rate < tolerance.fail * usual
            (evidence.failures if failed else evidence.warnings).append(text)
