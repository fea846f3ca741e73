"""What this container has, as files and the kernel tell it: GPUs of any vendor, CPUs, torch,
network interfaces, and volumes that are full. Nothing opens a GPU, and nothing is imported to find
out.

Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import socket
import struct
import subprocess
import threading
from pathlib import Path

SIOCGIFADDR = 0x8915
STATVFS_S = 1.0  # for the free space of all volumes
NVIDIA_SMI_S = 30
# Devices of vendors that this file cannot count: TPU and Gaudi, Neuron, Ascend, Intel.
OTHER_DEVICES = ("accel*", "accel/accel*", "neuron*", "davinci[0-9]*", "xpu*")


def visible_gpus(dev: Path = Path("/dev")) -> tuple[list[str] | None, str]:
    """One model name per GPU, None if they cannot be counted; and why the driver does not answer.

    A MIG device counts as a GPU, since the container sees it instead of the GPU. Of AMD's GPUs a
    container sees the device files, and not which model they are.
    """
    if tool := shutil.which("nvidia-smi"):
        return _nvidia(tool)
    if any(list(dev.glob(pattern)) for pattern in OTHER_DEVICES):
        return None, ""
    files = "dri/renderD*" if (dev / "kfd").exists() else "nvidia[0-9]*"
    return ["GPU" for _ in dev.glob(files)], ""


def _nvidia(tool: str) -> tuple[list[str] | None, str]:
    try:
        done = subprocess.run(
            [tool, "-L"], capture_output=True, check=True, errors="replace", timeout=NVIDIA_SMI_S
        )
    except subprocess.SubprocessError as error:
        return [], f"{error} {error.stdout or ''}".strip()[:300]
    except OSError as error:
        return None, f"nvidia-smi does not start: {error.strerror}"
    gpus = re.findall(r"^GPU \d+: (.+?)(?: \(UUID|$)", done.stdout, re.MULTILINE)
    mig = re.findall(r"^\s+(MIG \S+)", done.stdout, re.MULTILINE)
    return mig or gpus, ""


def cpus() -> int:
    """CPUs that this container may use: its quota, which Python does not read, or its affinity."""
    own = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        return own if quota == "max" else max(1, min(own, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return own


def torch_version() -> str:
    """Version of torch with its build (+cu128), from a file: its import would take seconds."""
    spec = importlib.util.find_spec("torch")
    file = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    text = file.read_text() if file and file.exists() else ""
    return next(iter(re.findall(r"^__version__[^=]*= *'([^']*)'", text, re.MULTILINE)), "")


def is_own_address(address: str) -> bool:
    """Whether this node has the address."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def interfaces() -> dict[str, list[str]]:
    """Interface -> its addresses."""
    found: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name, own in found.items():
            with contextlib.suppress(OSError):  # it has no IPv4 address
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                own.append(socket.inet_ntoa(answer[20:24]))
    with contextlib.suppress(OSError):  # no IPv6
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, *_, name = line.split()
            own = found.setdefault(name, [])
            own.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return found


def full_volumes() -> list[str]:
    """Volumes that could be written and are full; asked in a thread, as NFS may not answer."""
    found: list[str] = []

    def look() -> None:
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, place, _, options, *_ = line.split()
            with contextlib.suppress(OSError):
                space = shutil.disk_usage(place)
                little = space.free < 1 << 20 and space.free * 100 < space.total
                if options.split(",")[0] == "rw" and little and place not in found:
                    found.append(place)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(STATVFS_S)
    return list(found)
