"""Fabric, NVLink errors and users of a GPU, as NVML reports them.

`query` calls a function of NVML with its arguments and returns None where driver or board lack it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

Query = Callable[..., object]

# Counters up to NVLink 4, per link and kind; from NVLink 5 on, fields per link.
LINK_COUNTERS = ("DL_REPLAY", "DL_RECOVERY", "DL_CRC_FLIT", "DL_CRC_DATA")
LINK_FIELDS = (
    "LINK_RECOVERY_EVENTS",
    "RCV_ERRORS",
    "LOCAL_LINK_INTEGRITY_ERRORS",
    "BUFFER_OVERRUN_ERRORS",
)
# the newest that driver and pynvml have
STRUCTURES = ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t")


def fabric(library, query: Query, handle) -> dict[str, object]:
    """What the fabric manager did with the GPU; empty for GPUs without NVSwitch."""
    for name in STRUCTURES:
        structure = getattr(library, name, None)
        if structure is None:
            continue
        info = structure()
        if (
            query("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info)) is None
            or not info.state
        ):
            continue
        return {
            "fabric_state": int(info.state),
            "fabric_status": int(info.status),
            "fabric_health": int(info.healthMask),
            "fabric_clique": int(info.cliqueId),
            "fabric_cluster": bytes(info.clusterUuid).hex(),
        }
    return {}


def nvlink_errors(library, query: Query, handle, states: list[int | None]) -> int | None:
    """Sum of the error counters of the links that are up; None where the driver has no such
    counters.
    """
    up = [link for link, state in enumerate(states) if state == 1]
    kinds = [getattr(library, f"NVML_NVLINK_ERROR_{name}", None) for name in LINK_COUNTERS]
    found = [
        query("nvmlDeviceGetNvLinkErrorCounter", handle, link, kind)
        for link in up
        for kind in kinds
    ]
    if known := [count for count in found if count is not None]:
        return sum(known)
    fields = [getattr(library, f"NVML_FI_DEV_NVLINK_COUNT_{name}", None) for name in LINK_FIELDS]
    wanted = [(field, link) for link in up for field in fields if field is not None]
    values = (query("nvmlDeviceGetFieldValues", handle, wanted) if wanted else None) or ()
    known = [int(value.value.ullVal) for value in values if not value.nvmlReturn]
    return sum(known) if known else None


def users(library, query: Query, handle) -> dict[str, object]:
    """Memory that is in use, and the programs that use the GPU, without this one."""
    memory = query("nvmlDeviceGetMemoryInfo", handle, getattr(library, "nvmlMemory_v2", None))
    load = query("nvmlDeviceGetUtilizationRates", handle)
    own = {os.getpid(), os.getppid()}
    programs = []
    for process in query("nvmlDeviceGetComputeRunningProcesses", handle) or ():
        if process.pid not in own:
            name = query("nvmlSystemGetProcessName", process.pid)
            name = name.decode(errors="replace") if isinstance(name, bytes) else name
            programs.append(f"{name or 'a program of another container'} (process {process.pid})")
    return {
        "memory_used_bytes": None if memory is None else int(memory.used),
        "busy_percent": None if load is None else int(load.gpu),
        "programs": tuple(programs),
    }
