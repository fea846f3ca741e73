"""All GPUs are present, healthy and have the required versions, and the host fits.

The driver's data is read from NVML (nvidia-ml-py), else from nvidia-smi; without both the check
warns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
from pathlib import Path

from gpuworker.accept import environment_problems, errors, fabric, host_info
from gpuworker.judgement.check_spec import Plan, Spec
from gpuworker.judgement.report import INCOMPLETE, Evidence, Problem
from gpuworker.runtime import gpu_inventory

SPEC = Spec(
    tag="ENV",
    seconds={"quick": 4, "full": 4, "burn-in": 4, "prolog": 1},
    faults={
        "missing-gpu": "gpus-missing",
        "wrong-version": "setting",
        "ecc-error": "ecc",
        "row-remap": "row-remap-failed",
        "narrow-pcie": "pcie",
        "capped-power": "power-capped",
        "idle-slowdown": "slowdown",
        "lost-gpu": "gpu-lost",
        "xid": "xid-reboot",
        "recovery-action": "reset-needed",
        "fabric-degraded": "fabric-degraded",
        "other-program": "other-program",
        "switch-error": "xid-nvswitch",
        "port-down": "port-down",
        "slow-port": "port-slow",
        "far-adapter": "far-adapter",
        "small-shm": "setting",
    },
)
# what --expect can require
VERSIONS = ("torch", "cuda", "nccl", "cudnn", "driver", "python", "kernel")
# Injected fault -> changes to the driver's data of the last GPU.
FAULTY_GPU = {
    "ecc-error": {"ecc_uncorrected": 3},
    "row-remap": {"remap_failed": True},
    "narrow-pcie": {"pcie_width": 8, "pcie_width_max": 16},
    "capped-power": {"power_limit_w": 350.0, "power_default_w": 700.0},
    "idle-slowdown": {"clock_reasons": 0x40},
    "lost-gpu": {"lost": "GPU is lost"},
    "recovery-action": {"recovery_action": 1},
    "fabric-degraded": {"fabric_state": 3, "fabric_status": 0, "fabric_health": 1},
    "other-program": {"programs": ("trainer (process 4711)",)},
}
XID = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
PLACES = dict.fromkeys(("cuda:0", "cuda:1", "cuda:2"), fabric.NUMA)
SXID = "nvidia-nvswitch2: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"


def _ports(**faults: object) -> dict:
    """Four ports, of which a healthy node has four alike."""
    ports = [fabric.Port(f"mlx5_{index}/1", True, rate_gbps=400.0) for index in range(4)]
    return fabric.facts([*ports[:3], dataclasses.replace(ports[3], **faults)])


# Injected fault -> changes to the facts.
FAULTY = {
    "missing-gpu": {"gpus_seen": 0, "gpus_expected": 1},
    "port-down": _ports(up=False),
    "slow-port": _ports(rate_gbps=100.0),
    "far-adapter": {"nearest_adapters": {**PLACES, "cuda:3": fabric.FAR}},
    "small-shm": {"shm_bytes": 64 << 20, "shm_needed": True},
    "xid": {"xids": [dataclasses.asdict(host_info.xid(XID, 60.0))]},
    "switch-error": {"xids": [dataclasses.asdict(host_info.xid(SXID, 60.0))]},
}


def measure(plan: Plan) -> Evidence:
    models, uuids, problem = gpus_of_torch(plan)
    source, gpus = "", [gpu_inventory.Gpu("cpu")]
    if plan.device == "cuda":
        source, gpus = gpu_inventory.inventory()
        gpus = gpu_inventory.with_torch_names(gpus, uuids)
        gpus = [gpu for gpu in gpus if gpu_inventory.is_given(gpu.uuid)]
    if gpus:
        gpus[-1] = dataclasses.replace(gpus[-1], **FAULTY_GPU.get(plan.inject, {}))
    found = versions(next((gpu.driver for gpu in gpus if gpu.driver), None))
    bus_ids = {gpu.device: gpu.bus_id for gpu in gpus if gpu.bus_id}
    ports, xids = fabric.ports(), host_info.xids(Path("/dev/kmsg"))
    if xids and gpu_inventory.given():
        own = " ".join(gpu.bus_id for gpu in gpus)  # with the function of each device
        xids = [each for each in xids if each.kind == "SXid" or each.bus_id in own]
    evidence = Evidence()
    evidence.facts = {
        **found,
        "cuda_error": problem.reason if problem else "",
        "cuda_error_kind": problem.kind if problem else "",
        "gpus_expected": plan.gpus,
        "gpus_seen": len(models),
        "gpu_models": models,
        "gpu_source": source or "no NVML",
        "gpus": [dataclasses.asdict(gpu) for gpu in gpus],
        "pci_gpus": host_info.nvidia_devices(),
        "mps_share": _mps_share(),
        **host_info.facts(),
        **fabric.facts(ports),
        "nearest_adapters": fabric.nearest(ports, bus_ids),
        "xids": environment_problems.NOT_READABLE
        if xids is None
        else [dataclasses.asdict(event) for event in xids],
        **FAULTY.get(plan.inject, {}),
    }
    _expect(plan, found, evidence)
    return evidence


def problems(evidence: Evidence, plan: Plan) -> None:
    environment_problems.add_problems(evidence, plan)


def versions(driver: str | None) -> dict[str, str | None]:
    """By the names in VERSIONS; None: unknown on this node."""
    import torch

    nccl = torch.cuda.nccl.version() if hasattr(torch._C, "_nccl_version") else None
    cudnn = None
    with contextlib.suppress(RuntimeError):  # it asks the first GPU
        cudnn = str(torch.backends.cudnn.version()) if torch.backends.cudnn.is_available() else None
    found = (
        torch.__version__, torch.version.cuda, ".".join(map(str, nccl)) if nccl else None, cudnn,
        driver, platform.python_version(), platform.release(),
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


def _expect(plan: Plan, versions: dict[str, str | None], evidence: Evidence) -> None:
    """Compare versions with the required ones; "570.86" stands for any 570.86.x."""
    expected = dict(plan.expect)
    if plan.injected("wrong-version"):
        expected.setdefault("torch", str(versions["torch"]))
        versions["torch"] = "0.0.0"
    for name, wanted in expected.items():
        found = versions.get(name)
        if found is None:
            evidence.incomplete(
                "unreadable", f"the version of {name} cannot be read here, {wanted} is required"
            )
        elif found != wanted and not found.startswith((f"{wanted}.", f"{wanted}+")):
            evidence.fail("setting", f"{name} is {found}, {wanted} is required")


def _mps_share() -> str:
    """Share of the GPU's threads that MPS gives this process, in percent; "" without MPS."""
    share = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")
    return share if share != "100" or "CUDA_MPS_PIPE_DIRECTORY" in os.environ else ""
