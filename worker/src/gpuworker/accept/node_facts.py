"""What this node is: names, versions, and the GPUs that torch sees. Not judged, but every verdict rests on it."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from gpuworker.accept.registry import Evidence, Plan, Registered, Spec


def measure(plan: Plan) -> Evidence:
    import torch

    facts = {
        "hostname": os.uname().nodename,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _match("/proc/cpuinfo", r"model name\s*: (.*)"),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": _match("/proc/driver/nvidia/version", r"Kernel Module.*?\s(\d+\.[\d.]+)"),
        "gpu_models": [],
    }
    if plan.device == "cuda":
        facts["gpu_models"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else None
    return Evidence(facts=facts)


def _match(path: str, pattern: str) -> str | None:
    try:
        found = re.search(pattern, Path(path).read_text())
    except OSError:
        return None
    return found[1] if found else None


# Run as a check is, in a child: the runner itself must not touch a GPU before it forks.
IDENTITY = Registered("identity", __doc__.splitlines()[0], Spec("ENV", {}), measure)
