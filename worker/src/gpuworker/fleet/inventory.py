"""Inventory of a node: its GPUs and its network ports.

Any JSON may stand in the facts of a report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gpuworker.judgement.report import Report

LONGEST = 100  # characters
MOST_GBPS = 1e6


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
