"""GPUs whose power limit is below that of others of their model: slow without a fault, and not
in need of a repair.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator

from gpuworker.fleet.fleet_report import Finding
from gpuworker.judgement.report import WARN, Report

TOLERANCE = 0.05  # of the limit: less power than that explains no slow GPU
MOST_WATTS = 1e6


def power_limits(reports: list[Report]) -> list[Finding]:
    """A WARN for each GPU with less than most of its model have, in watts."""
    by_model: dict[str, list[tuple[str, str, float]]] = defaultdict(list)
    for report in reports:
        for device, model, watts in _gpus(report):
            by_model[model].append((report.node, device, watts))
    found = []
    for gpus in by_model.values():
        usual = statistics.median_high(watts for _, _, watts in gpus)
        for node, device, watts in gpus:
            if watts < (1 - TOLERANCE) * usual:
                words = (
                    f"its power limit is {watts:g} W, that of most others of its model {usual:g} W"
                )
                found.append(
                    Finding(WARN, "power-capped", words, node, device, "environment", "fleet")
                )
    return found


def _gpus(report: Report) -> Iterator[tuple[str, str, float]]:
    """Device, model and power limit of the GPUs in the environment check."""
    for gpu in report.listed("gpus"):
        device, model, watts = (gpu.get(key) for key in ("device", "name", "power_limit_w"))
        known = (
            isinstance(watts, int | float)
            and not isinstance(watts, bool)
            and 0 < watts < MOST_WATTS
        )
        if known and isinstance(device, str) and isinstance(model, str):
            yield device[:100], model, float(watts)
