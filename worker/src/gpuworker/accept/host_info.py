"""Host of the GPUs: PCI bus, kernel log, clock, shared memory, CPUs. All without root."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuworker.runtime import machine

TIME_ERROR = 5  # of adjtimex


@dataclass(frozen=True)
class Xid:
    """One error message of the NVIDIA driver in the kernel's log: of a GPU, or of an NVSwitch."""

    code: int
    bus_id: str
    text: str
    age_s: float
    kind: str = "Xid"  # or SXid, of an NVSwitch
    repaired: bool = False  # an SXid that is not fatal


def facts() -> dict[str, object]:
    """CPUs and memory that this process may use, shared memory, and the state of the kernel's
    clock.
    """
    return {
        "cpus": machine.cpus(),
        "cpu_model": cpu_model(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "shm_bytes": _size_of("/dev/shm"),
        "clock_synchronised": clock_synchronised(),
    }


def cpu_model(path: Path = Path("/proc/cpuinfo")) -> str:
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith(("model name", "Model", "CPU part")):
                return line.split(":", 1)[1].strip()
    return "unknown"


def nvidia_devices(root: Path = Path("/sys/bus/pci/devices")) -> list[str]:
    """PCI addresses of the node's GPUs, with or without a driver (vendor 10de, class display or
    3D).
    """
    found = []
    for device in sorted(root.iterdir()) if root.is_dir() else []:
        with contextlib.suppress(OSError):
            vendor, kind = (
                (device / "vendor").read_text().strip(),
                (device / "class").read_text().strip(),
            )
            if vendor == "0x10de" and kind.startswith(("0x0300", "0x0302")):
                found.append(device.name)
    return found


def local_cpus(bus_id: str, root: Path = Path("/sys/bus/pci/devices")) -> set[int]:
    """CPUs near a PCI device; empty where the machine does not report them."""
    return cpu_list(root / bus_id / "local_cpulist")


def cpu_list(path: Path) -> set[int]:
    """CPUs of a file such as "0-15,32-47"; empty without the file."""
    found: set[int] = set()
    with contextlib.suppress(OSError, ValueError):
        for part in path.read_text().strip().split(","):
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return found


def cores_by_numa_node(
    allowed: set[int], root: Path = Path("/sys/devices/system")
) -> dict[int, list[int]]:
    """NUMA node -> one CPU of each of its cores that this process may use. One node 0 where
    there is no NUMA.
    """
    siblings = {
        cpu: cpu_list(root / f"cpu/cpu{cpu}/topology/thread_siblings_list") & allowed
        for cpu in allowed
    }
    cores = {min(siblings[cpu] or {cpu}) for cpu in allowed}
    nodes = {
        int(path.name[4:]): cpu_list(path / "cpulist") & cores
        for path in root.glob("node/node[0-9]*")
    }
    # memory of a GPU has no CPU
    found = {node: sorted(cpus) for node, cpus in sorted(nodes.items()) if cpus}
    return found or {0: sorted(cores)}


@contextlib.contextmanager
def bound_to(cpus: set[int]) -> Iterator[None]:
    """Run the block in this thread on these CPUs, as far as the pod may use them: memory is
    taken from their node.
    """
    before = os.sched_getaffinity(0)
    if cpus & before:
        # a CPU that went offline, or a sandbox that forbids the call
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cpus & before)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)


def xids(log: Path) -> list[Xid] | None:
    """The driver's errors since the node booted, or None where the kernel's log is not readable
    (most pods).
    """
    try:
        records = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    found, uptime_s = [], time.clock_gettime(time.CLOCK_MONOTONIC)
    try:
        # one message per read: "PRIORITY,SEQUENCE,MICROSECONDS,-;TEXT"
        while record := os.read(records, 8192):
            for line in record.decode(errors="replace").splitlines():
                head, _, text = line.partition(";")
                fields = head.split(",")
                if (
                    len(fields) > 2
                    and fields[2].isdigit()
                    and (event := xid(text, uptime_s - int(fields[2]) / 1e6))
                ):
                    found.append(event)
    except BlockingIOError:
        pass  # the end of the log
    except OSError:
        return None
    finally:
        os.close(records)
    return found


def xid(text: str, age_s: float) -> Xid | None:
    """Parse "NVRM: Xid (PCI:0000:3b:00): 79, pid=…, GPU has fallen off the bus.", and
    "nvidia-nvswitch3: SXid (PCI:…".

    Of an NVSwitch: "20034, Fatal, Link 30 …" or "28006, Non-fatal, Link 46 …".
    """
    if found := re.search(r"SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+),\s*(.*)", text):
        return Xid(
            int(found[2]),
            found[1].lower(),
            found[3].strip(),
            age_s,
            "SXid",
            found[3][:5] != "Fatal",
        )
    found = re.search(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+),\s*(.*)", text)
    if not found:
        return None
    return Xid(int(found[2]), found[1].lower(), found[3].strip(), age_s)


def clock_synchronised() -> bool | None:
    """Whether the kernel's clock is synchronised (adjtimex(2), read-only); None where a container
    may not ask.
    """
    timex = (ctypes.c_long * 26)()  # struct timex on 64-bit Linux has 208 bytes
    state = ctypes.CDLL(None).adjtimex(timex)
    return None if state < 0 else state != TIME_ERROR


def _size_of(path: str) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize
