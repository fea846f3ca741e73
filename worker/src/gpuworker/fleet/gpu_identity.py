"""Identity of GPUs: what a report holds of each of them, also of one that torch does not see."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from gpuworker.judgement.report import Report

FELL_OFF = 79  # Xid
UNNAMED = "GPU "  # start of the name of a GPU that torch has no name for


@dataclass(frozen=True)
class GpuIdentity:
    """What an RMA asks for; "" if the driver does not report it."""

    device: str
    uuid: str = ""
    serial: str = ""
    pci: str = ""


def identities(report: Report) -> list[GpuIdentity]:
    """The GPUs that the environment check of a report lists."""
    found = []
    for gpu in report.listed("gpus"):
        values = (gpu.get(key) for key in ("device", "uuid", "serial", "bus_id"))
        found.append(
            GpuIdentity(*(value[:100] if isinstance(value, str) else "" for value in values))
        )
    return found


def with_lost(gpus: list[GpuIdentity], findings: Iterable) -> list[GpuIdentity]:
    """The listed GPUs, and the missing one if it is the only one and something names it.

    The driver may still list it, or only its place in the driver's list; else the PCI bus or an Xid
    has its address.
    """
    findings = list(findings)
    counts = [f.numbers for f in findings if f.kind == "gpus-missing" and f.numbers.get("seen")]
    counts = [{"expected": 0, "not_shown": [], **each} for each in counts]
    if {each["expected"] - each["seen"] for each in counts} != {1}:
        return gpus
    names = {f.device for f in findings if f.kind == "gpu-lost" and f.device.startswith(UNNAMED)}
    names = names or {gpu.device for gpu in gpus if gpu.device.startswith(UNNAMED)}
    listed = [gpu for gpu in gpus if {gpu.device} == names]
    fell_off = {
        str(f.numbers.get("pci", "")) for f in findings if f.numbers.get("code") == FELL_OFF
    } - {""}
    known = tuple(gpu.pci for gpu in gpus if gpu.pci)
    address = _only({address for each in counts for address in each["not_shown"]}) or _only(
        {each for each in fell_off if not any(pci.startswith(each) for pci in known)}
    )
    name = _only(names) or (address and f"{UNNAMED}{address}")
    if not name:
        return gpus
    lost = listed[0] if listed else GpuIdentity(name)
    lost = dataclasses.replace(lost, pci=lost.pci or address)
    return [gpu for gpu in gpus if gpu not in listed] + [lost]


def name_of_lost(gpus: list[GpuIdentity], findings: Iterable) -> str:
    """The name of the missing GPU in the list of `with_lost`: torch does not see it, or it alone
    lacks numbers.
    """
    unseen = [gpu.device for gpu in gpus if gpu.device.startswith(UNNAMED)]
    lacks = {
        f.device
        for f in findings
        if f.kind == "missing" and f.device.removeprefix("cuda:").isdecimal()
    }
    name = unseen[0] if len(unseen) == 1 else "" if unseen else _only(lacks)
    return name if any(gpu.device == name for gpu in gpus) else ""


def _only(values: set[str]) -> str:
    return next(iter(values)) if len(values) == 1 else ""
