"""Names of GPU types, spelt as SkyPilot spells them."""

from __future__ import annotations

from jobgen.accelerators import ACCELERATORS

# The types that SkyPilot knows on Kubernetes without its catalog of clouds.
_SKYPILOT = [
    "A10",
    "A100",
    "A100-80GB",
    "A10G",
    "A16",
    "A30",
    "A40",
    "A4000",
    "A5000",
    "A6000",
    "B100",
    "B200",
    "B300",
    "GB200",
    "GB300",
    "GH200",
    "H100",
    "H100-80GB",
    "H100-MEGA",
    "H200",
    "K80",
    "L4",
    "L40",
    "L40S",
    "M60",
    "P100",
    "P4",
    "P40",
    "P4000",
    "RTX6000-Ada",
    "T4",
    "T4g",
    "V100",
    "V100-32GB",
]
_NAMES = {name.lower(): name for name in (*sorted(ACCELERATORS), *_SKYPILOT)}


def canonical(name: str) -> str:
    """Return the name in the usual case, or the only name that contains it; an unknown name as it is."""
    lower = name.lower()
    if lower in _NAMES:
        return _NAMES[lower]
    containing = [each for known, each in _NAMES.items() if lower in known]
    return containing[0] if len(containing) == 1 else name


def similar(name: str) -> list[str]:
    """Return the names that contain an unknown one, or one of which it consists."""
    lower = name.lower()
    return sorted(each for known, each in _NAMES.items() if lower in known or lower.startswith(f"{known}-"))
