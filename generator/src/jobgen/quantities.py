"""SkyPilot's notations of sizes in Kubernetes' spelling."""

from __future__ import annotations

import re
from decimal import Decimal

# SkyPilot counts in GB, with 1024 of them in a TB, and asks Kubernetes for that many G; never less than that here.
_UNITS = {"": (1, ""), "kb": (1, "k"), "mb": (1, "M"), "gb": (1, "G"), "tb": (1024, "G"), "pb": (1024**2, "G")}


def quantity(amount: float | str, unit: str = "") -> str:
    """4, "4+" -> 4; with "gb": 16, "16+", "16GB" -> 16G; "16Gi" -> 16Gi. The schema lets nothing else pass."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]{2})?\+?", str(amount).lower())
    assert match
    unit = match[2] or unit
    factor, spelling = _UNITS.get(unit) or (1, unit.capitalize())
    return _short(Decimal(match[1]) * factor) + spelling


def multiply(amount: str, factor: float) -> str:
    """A quantity multiplied."""
    match = re.fullmatch(r"([0-9.]+)(.*)", amount)
    assert match
    return _short(Decimal(match[1]) * Decimal(str(factor))) + match[2]


def _short(number: Decimal) -> str:
    """Without needless zeros, and no finer than Kubernetes takes."""
    if number % 1:
        number = max(number.quantize(Decimal("0.001")), Decimal("0.001"))
    return f"{number.normalize():f}"
