"""A node with GPUs that exist only in the stand-in for NVML and in answers of torch."""

import sys
from types import SimpleNamespace

import torch

from gpuworker.accept import host_info
from tests.helpers.pynvml_stand_in import Library


def install(monkeypatch, *gpus: dict, seen: int | None = None):
    """These GPUs are in the driver (differences from a healthy H100), and torch sees the first
    `seen` of them.
    """
    library = Library(*gpus)
    count = len(gpus) if seen is None else seen
    uuids = [
        gpu["uuid"].format(index=index).removeprefix("GPU-")
        for index, gpu in enumerate(library.gpus)
    ]
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: library.gpus[i]["name"])
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(uuid=uuids[device.index]),
    )
    # It asks the first GPU, once a process, and no one here has one.
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    monkeypatch.setattr(host_info, "clock_synchronised", lambda: True)
    monkeypatch.setattr(host_info, "_size_of", lambda path: 64 << 30)
    monkeypatch.setattr(host_info, "xids", lambda log: [])
