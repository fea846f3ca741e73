"""Facts of this node: names, versions, and the GPUs that torch sees. No verdict, but limits depend on them."""

from __future__ import annotations

import dataclasses
import os
import platform

from gpuworker.accept import errors, host_info
from gpuworker.accept.check_spec import Plan, Registered, Spec
from gpuworker.judgement.report import INCOMPLETE, Evidence, Problem
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
    facts["gpu_models"], _, problem = gpus_of_torch(plan)
    if plan.device == "cuda":
        facts["nccl"] = (
            ".".join(map(str, torch.cuda.nccl.version()))
            if torch.distributed.is_nccl_available()
            else None
        )
    return Evidence(facts=facts, problems=[problem] if problem else [])


def gpus_of_torch(plan: Plan) -> tuple[list[str], dict[str, str], Problem | None]:
    """Models and UUIDs ("cuda:3" -> UUID) of the GPUs, and why CUDA cannot be used: one lost GPU
    is enough.
    """
    import torch

    from gpuworker.accept.kernels import timing

    if plan.device != "cuda":
        return [], {}, None
    try:
        models = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return models, timing.uuids(plan), None
    except Exception as error:  # torch has several classes for errors of CUDA
        problem = errors.problem_of(error)
        kind = "cuda-error" if problem.kind == "check-failed" else problem.kind
        hint = ": does the fabric manager run (nvidia-smi -q, Fabric State)?" * (
            kind == "fabric-manager"
        )
        words = f"CUDA cannot be used: {problem.reason}{hint}"
        return [], {}, dataclasses.replace(problem, kind=kind, verdict=INCOMPLETE, reason=words)


# Runs in a subprocess as a check does: the runner itself must not touch a GPU before it forks.
IDENTITY = Registered("identity", first_line(__doc__), Spec("ENV", {}), measure)
