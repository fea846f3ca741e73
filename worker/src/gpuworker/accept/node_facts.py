"""Facts of this node: names, versions, and the GPUs that torch sees, on which limits depend."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform

from gpuworker.accept import errors, host_info
from gpuworker.accept.check_spec import Plan, Registered, Spec
from gpuworker.judgement.report import INCOMPLETE, Evidence, Problem
from gpuworker.runtime import gpu_inventory
from gpuworker.runtime.command_line import first_line

# what --expect can require
VERSIONS = ("torch", "cuda", "nccl", "cudnn", "driver", "python", "kernel")


def measure(plan: Plan) -> Evidence:
    host = host_info.facts()
    facts = {
        **versions(gpu_inventory.driver_version()),
        "hostname": os.uname().nodename,
        "machine": platform.machine(),
        "cpu": host["cpu_model"],
        "cpus": host["cpus"],
        "memory_gib": round(host["memory_bytes"] / 2**30, 1),
    }
    facts["gpu_models"], _, problem = gpus_of_torch(plan)
    return Evidence(facts=facts, problems=[problem] if problem else [])


def versions(driver: str | None) -> dict[str, str | None]:
    """By the names in VERSIONS; None: unknown on this node."""
    import torch

    nccl = torch.cuda.nccl.version() if hasattr(torch._C, "_nccl_version") else None
    cudnn = None
    with contextlib.suppress(RuntimeError):  # it asks the first GPU
        cudnn = str(torch.backends.cudnn.version()) if torch.backends.cudnn.is_available() else None
    found = (
        torch.__version__, torch.version.cuda, ".".join(map(str, nccl)) if nccl else None, cudnn, driver,
        platform.python_version(), platform.release(),
    )  # fmt: skip
    return dict(zip(VERSIONS, found, strict=True))


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
