"""A device that is slower than its siblings in the same node, whatever the model should do."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuworker.accept.registry import Evidence


@dataclass(frozen=True)
class Tolerance:
    """Shares of the median of the others below which a device is doubtful, and wrong (None: never)."""

    doubtful: float
    wrong: float | None


# Healthy GPUs of one model differ by 5 % and more (ml-engineering); gpu-fryer's default within a node is 10 %.
GPUS = Tolerance(0.90, 0.80)
# Lanes of a rehearsal share cores with whatever else runs there: only what is plainly slow counts.
LANES = Tolerance(0.30, 0.15)


def judged_by(device: str) -> tuple[Callable[[Sequence[float]], float], Tolerance]:
    """Which of many times stands for a device ("cuda" | "cpu"), and the tolerance.

    For GPUs the median; in a rehearsal the least, because what else runs on the CPU hits single calls.
    """
    return (statistics.median, GPUS) if device == "cuda" else (min, LANES)


def compare(evidence: Evidence, what: str, unit: str, rates: dict[str, float], tolerance: Tolerance) -> None:
    """Say in the evidence which of the devices (or links) is slow. With one alone there is nothing to say."""
    for name, rate in rates.items():
        others = [value for other, value in rates.items() if other != name]
        if not others:
            return
        usual = statistics.median(others)
        if rate < tolerance.doubtful * usual:
            words = f"{name} is slow: {what} {rate:.4g} {unit} is {rate / usual:.0%} of the median of its siblings"
            wrong = tolerance.wrong is not None and rate < tolerance.wrong * usual
            (evidence.wrong if wrong else evidence.doubtful).append(words)
