"""Everything is here that the other checks rely on: GPUs, driver, versions."""

from __future__ import annotations

import os
import platform

from gpuworker.accept.registry import Evidence, Plan, Spec

SPEC = Spec(
    tag="ENV",
    seconds={"quick": 2, "full": 2, "burn-in": 2},
    faults={"missing-gpu": r"torch sees -?\d+ GPUs?, \d+ expected"},
)


def measure(plan: Plan) -> Evidence:
    import torch

    seen = torch.cuda.device_count() if plan.device == "cuda" else 0
    seen -= plan.injected("missing-gpu")
    evidence = Evidence()
    evidence.facts = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "gpus_expected": plan.gpus,
        "gpus_seen": seen,
        "gpu_models": [torch.cuda.get_device_name(i) for i in range(seen)],
    }
    if plan.device == "cuda" and seen == 0:
        evidence.missing.append(f"torch sees no GPU, {plan.gpus} expected")
    elif seen != plan.gpus:
        evidence.wrong.append(f"torch sees {seen} GPUs, {plan.gpus} expected")
    return evidence
