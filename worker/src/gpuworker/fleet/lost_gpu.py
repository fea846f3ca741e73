"""A GPU that torch does not see: its name and identity, from whatever else a report has about it.

The driver may still list it, or only its place in the driver's list; else the PCI bus or an Xid has its address.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from gpuworker.fleet.gpu_identity import GpuIdentity

SEEN = re.compile(r"torch sees (no|\d+) GPUs?, (\d+) expected")
FEWER = re.compile(r"torch sees|GPUs seen|covers \d+ of \d+ GPUs")
LOST = re.compile(r"(GPU \d+ of the driver): the driver has lost it")
LACKS = re.compile(r"(?:: )?(cuda:\d+): no \w+$")
OF_DRIVER = re.compile(r"GPU \d+ of the driver")  # that torch has no name for
NOT_SHOWN = re.compile(r"not shown to this pod: ([\da-f:., ]+)")
FELL_OFF = re.compile(r"\bXid 79 of ([\da-f:.]+)")


def with_lost(gpus: list[GpuIdentity], reasons: Iterable[str]) -> list[GpuIdentity]:
    """The listed GPUs, and the missing one if it is the only one and something names it."""
    reasons = list(reasons)
    counts = [found.groups() for reason in reasons if (found := SEEN.search(reason))]
    if {int(expected) - int(seen) for seen, expected in counts if seen != "no"} != {1}:
        return gpus
    names = {found[1] for reason in reasons if (found := LOST.search(reason))}
    names = names or {gpu.device for gpu in gpus if OF_DRIVER.fullmatch(gpu.device)}
    listed = [gpu for gpu in gpus if {gpu.device} == names]
    address = _only(_addresses(NOT_SHOWN, reasons)) or _only(
        {found for found in _addresses(FELL_OFF, reasons) if not any(gpu.pci.startswith(found) for gpu in gpus)}
    )
    name = _only(names) or (address and f"GPU {address}")
    if not name:
        return gpus
    lost = listed[0] if listed else GpuIdentity(name)
    lost = dataclasses.replace(lost, pci=lost.pci or address)
    return [gpu for gpu in gpus if gpu not in listed] + [lost]


def is_count(reason: str) -> bool:
    """Whether a finding is that a GPU is missing."""
    return bool(FEWER.search(reason))


def name_of(gpus: list[GpuIdentity], findings: Iterable) -> str:
    """The name of the missing GPU in the list of `with_lost`: torch does not see it, or it alone lacks numbers."""
    unseen = [gpu.device for gpu in gpus if gpu.device.startswith("GPU ")]
    lacks = {found[1] for finding in findings if (found := LACKS.match(f"{finding.device}: {finding.reason}"))}
    name = unseen[0] if len(unseen) == 1 else "" if unseen else _only(lacks)
    return name if any(gpu.device == name for gpu in gpus) else ""


def _addresses(pattern: re.Pattern[str], reasons: list[str]) -> set[str]:
    found = (match[1] for reason in reasons for match in pattern.finditer(reason))
    return {address.strip() for text in found for address in text.split(",") if address.strip()}


def _only(values: set[str]) -> str:
    return next(iter(values)) if len(values) == 1 else ""
