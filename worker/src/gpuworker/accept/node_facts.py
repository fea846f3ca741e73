"""Facts of this node: names, versions, and the GPUs that torch sees. No verdict, but limits depend on them."""

from __future__ import annotations

import os
import platform

from gpuworker.accept import host_info
from gpuworker.accept.check_spec import Evidence, Plan, Registered, Spec
from gpuworker.runtime import gpu_inventory
from gpuworker.runtime.command_line import first_line


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
    }
    facts["gpu_models"], _, error = gpus_of_torch(plan)
    if plan.device == "cuda":
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else None
    return Evidence(facts=facts, not_measured=[error] if error else [])


def gpus_of_torch(plan: Plan) -> tuple[list[str], dict[str, str], str]:
    """Models and UUIDs ("cuda:3" -> UUID) of the GPUs, and the error if CUDA cannot be used: one lost GPU is enough."""
    import torch

    from gpuworker.accept.kernels import timing

    if plan.device != "cuda":
        return [], {}, ""
    try:
        models = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return models, timing.uuids(plan), ""
    except Exception as error:  # torch has several classes for errors of CUDA
        hint = ": does the fabric manager run (nvidia-smi -q, Fabric State)?" if "802" in str(error) else ""
        return [], {}, f"CUDA cannot be used: {type(error).__name__}: {error}{hint}"


# Runs in a subprocess as a check does: the runner itself must not touch a GPU before it forks.
IDENTITY = Registered("identity", first_line(__doc__), Spec("ENV", {}), measure)
