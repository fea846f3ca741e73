"""Identity of GPUs: what a report holds of each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuIdentity:
    """What an RMA asks for; "" if the driver does not report it."""

    device: str
    uuid: str = ""
    serial: str = ""
    pci: str = ""


def listed_gpus(report: dict) -> Iterator[dict]:
    """The driver's data of each GPU that the environment check lists. A report may hold anything there."""
    for check in report["checks"]:
        gpus = check["facts"].get("gpus") if check["name"] == "environment" else None
        yield from (gpu for gpu in (gpus if isinstance(gpus, list) else []) if isinstance(gpu, dict))


def identities(report: dict) -> list[GpuIdentity]:
    """The GPUs that the environment check of a report lists."""
    found = []
    for gpu in listed_gpus(report):
        values = (gpu.get(key) for key in ("device", "uuid", "serial", "bus_id"))
        found.append(GpuIdentity(*(value[:100] if isinstance(value, str) else "" for value in values)))
    return found
