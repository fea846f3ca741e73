"""Inventory of a node: its GPUs, also one that torch does not see, and its network ports.

Any JSON may stand in the facts of a report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gpuworker.judgement.report import Report

FELL_OFF = 79  # Xid
LONGEST = 100  # characters
MOST_GBPS = 1e6
UNNAMED = "GPU "  # start of the name of a GPU that torch has no name for


@dataclass(frozen=True)
class GpuIdentity:
    """What an RMA asks for; "" if the driver does not report it."""

    device: str
    uuid: str = ""
    serial: str = ""
    pci: str = ""


class Port(NamedTuple):
    """A network port."""

    kind: str  # of its adapter
    up: bool
    rate_gbps: float


def gpu_models(report: Report) -> list[str]:
    """The node's GPU models by index; ["cpu"] in a rehearsal."""
    return ["cpu"] if report.requested.device == "cpu" else report.models


def model_of(device: str, models: list[str]) -> str:
    """The model of a device such as "cuda:3"; for a whole node or a pair, all models of the
    node.
    """
    if device.startswith("cuda:") and device[5:].isdecimal() and int(device[5:]) < len(models):
        return models[int(device[5:])]
    return " + ".join(sorted(set(models))) or "unknown"


def text(item: dict, key: str) -> str:
    """A text of an item, "" if it has none."""
    value = item.get(key)
    return value[:LONGEST] if isinstance(value, str) else ""


def number(item: dict, key: str, most: float) -> float:
    """A number of an item, 0 if it has none or one that cannot be."""
    value = item.get(key)
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < most
    return float(value) if known else 0.0


def identities(report: Report) -> list[GpuIdentity]:
    """The GPUs that the environment check of a report lists."""
    keys = ("device", "uuid", "serial", "bus_id")
    return [GpuIdentity(*(text(gpu, key) for key in keys)) for gpu in report.listed("gpus")]


def ports_of(report: Report) -> dict[str, Port]:
    """The ports that it lists."""
    return {
        name: Port(kind, port.get("up") is True, number(port, "rate_gbps", MOST_GBPS))
        for port in report.listed("ports")
        if (name := text(port, "name")) and (kind := text(port, "kind"))
    }


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
