"""Facts of this node: names, versions, and the GPUs that torch sees. No verdict, but limits depend on them."""

from __future__ import annotations

import os
import platform

from gpuworker.accept import host_info
from gpuworker.accept.check_spec import Evidence, Plan, Registered, Spec
from gpuworker.runtime import gpu_inventory


def measure(plan: Plan) -> Evidence:
    import torch

    facts = {
        "hostname": os.uname().nodename,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": host_info.cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": gpu_inventory.driver_version(),
        "gpu_models": [],
    }
    if plan.device == "cuda":
        facts["gpu_models"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else None
    return Evidence(facts=facts)


# Runs in a subprocess as a check does: the runner itself must not touch a GPU before it forks.
IDENTITY = Registered("identity", __doc__.splitlines()[0], Spec("ENV", {}), measure)
