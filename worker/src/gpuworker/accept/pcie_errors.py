"""Errors that the kernel counts on the PCIe links of GPUs and network adapters (AER), from sysfs
without privilege.

A bad connector often shows on the bridge above the device, so every bridge up to the root is read,
too.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from gpuworker.accept import fabric, host_info
from gpuworker.judgement.report import FAIL, WARN, Evidence

KINDS = ("correctable", "nonfatal", "fatal")
# Healthy links repeat a transfer now and then: PCIe permits an error in 10^12 bits, a full link one
# in a few seconds.
MOST_CORRECTABLE = 100
ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

Counts = dict[str, dict[str, int]]  # PCI address -> kind -> errors since the node booted


def counts(root: Path | None = None) -> Counts:
    """Of every device on the way from a GPU or an adapter to the root; without those that count
    no errors.
    """
    devices = (root or fabric.SYS) / "bus/pci/devices"
    wanted = {
        *host_info.nvidia_devices(devices),
        *(port.bus_id for port in fabric.ports(root) if port.bus_id),
    }
    found: Counts = {}
    for address in sorted(wanted):
        place = (devices / address).resolve()
        for folder in [place, *place.parents]:
            if ADDRESS.fullmatch(folder.name):
                known = {kind: _total(folder / f"aer_dev_{kind}") for kind in KINDS}
                found[folder.name] = {
                    kind: count for kind, count in known.items() if count is not None
                }
    return {address: known for address, known in found.items() if known}


def grown(before: Counts, after: Counts, evidence: Evidence) -> None:
    """Add each device whose link counted new errors."""
    for address, now in after.items():
        new = {
            kind: count - before.get(address, {}).get(kind, count) for kind, count in now.items()
        }
        shown = [
            f"{new[kind]} {kind}"
            for kind in KINDS
            if new.get(kind, 0) > (MOST_CORRECTABLE if kind == KINDS[0] else 0)
        ]
        if shown:
            verdict = FAIL if new.get("fatal", 0) > 0 else WARN
            words = f"PCIe link of {address}: new errors during the checks: {', '.join(shown)}"
            evidence.add(verdict, "pcie-errors", words, address)


def _total(path: Path) -> int | None:
    with contextlib.suppress(OSError):
        if found := re.search(r"^TOTAL_ERR_\w+ (\d+)$", path.read_text(), re.MULTILINE):
            return int(found[1])
    return None
