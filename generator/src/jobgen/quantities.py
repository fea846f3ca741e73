"""Conversion of SkyPilot's sizes to Kubernetes quantities."""

import re
from decimal import Decimal

# SkyPilot converts to GB, with 1024 GB per TB, and requests that many G; jobgen never requests
# less.
_UNITS = {
    "": (1, ""),
    "kb": (1, "k"),
    "mb": (1, "M"),
    "gb": (1, "G"),
    "tb": (1024, "G"),
    "pb": (1024**2, "G"),
}


def quantity(amount: float | str, unit: str = "") -> str:
    """4, "4+" -> 4; with "gb": 16, "16+", "16GB" -> 16G; "16Gi" -> 16Gi. The schema accepts no
    other notation.
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]{2})?\+?", str(amount).lower())
    assert match
    unit = match[2] or unit
    factor, spelling = _UNITS.get(unit) or (1, unit.capitalize())
    return _short(Decimal(match[1]) * factor) + spelling


def _short(number: Decimal) -> str:
    """Format a number without trailing zeros, rounded to the thousandths that Kubernetes
    accepts.
    """
    if number % 1:
        number = max(number.quantize(Decimal("0.001")), Decimal("0.001"))
    return f"{number.normalize():f}"
