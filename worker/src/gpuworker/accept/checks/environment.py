"""All GPUs are present, healthy and have the required versions, and the host fits.

The driver's data is read from NVML (nvidia-ml-py), else from nvidia-smi; without both the check warns.
Not yet run on a GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
from pathlib import Path

from gpuworker.accept.check_spec import Evidence, Plan, Spec

SPEC = Spec(
    tag="ENV",
    seconds={"quick": 4, "full": 4, "burn-in": 4},
    faults={
        "missing-gpu": r"torch sees (no|\d+) GPUs?, \d+ expected",
        "wrong-version": r"torch is 0\.0\.0, \S+ is required",
        "ecc-error": r"\d+ uncorrectable memory errors",
        "row-remap": r"could not remap a bad row",
        "narrow-pcie": r"PCIe is ×8 wide, GPU and slot can do ×16",
        "capped-power": r"power is capped at 350 W of 700 W",
        "idle-slowdown": r"hardware thermal slowdown at rest",
        "lost-gpu": r"the driver has lost it",
        "xid": r"Xid 79",
        "recovery-action": r"the driver demands: reset the GPU",
        "fabric-degraded": r"the bandwidth of its fabric is degraded",
        "other-program": r"another program uses it: trainer \(process 4711\)",
        "switch-error": r"SXid 20034",
        "port-down": r"mlx5_3/1: this network port is down, 3 like it are up",
        "slow-port": r"mlx5_3/1: this network port runs at 100 Gb/s, others like it at 400",
        "far-adapter": r"cuda:3: its nearest network adapter is on another NUMA node",
        "small-shm": r"/dev/shm holds 64 MiB",
    },
)
# Injected fault -> changes to the driver's data of the last GPU.
FAULTY = {
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
# Injected fault -> changes to the last of four ports, where a healthy node has four alike.
FAULTY_PORT = {"port-down": {"up": False}, "slow-port": {"rate_gbps": 100.0}}
# NVML_GPU_RECOVERY_ACTION_… -> words.
RECOVERY_ACTIONS = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain the programs that use it together with other GPUs, then reset the GPU",
    4: "drain the node, then reset the GPU",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot the system",
}
# Fields of the driver's data -> words; a value that disappears with a driver must not look like health.
SENSORS = {
    ("ecc_uncorrected",): "uncorrectable memory errors",
    ("remap_failed", "pages_pending"): "repairs of the memory",
    ("clock_reasons",): "reasons for low clocks",
    ("temperature_c",): "the temperature",
    ("pcie_replays",): "the replays of its PCIe link",
}
MIN_SHM_BYTES = 1 << 30  # a container's default of 64 MiB ends NCCL and data loaders of 8 GPUs with a bus error
XID_RECENT_S = 2 * 3600


def measure(plan: Plan) -> Evidence:
    from gpuworker.accept import host_info, node_facts
    from gpuworker.runtime import gpu_inventory

    models, uuids, error = node_facts.gpus_of_torch(plan)
    seen, expected = len(models), plan.gpus
    if plan.injected("missing-gpu"):
        seen, expected = max(seen - 1, 0), max(expected, 1)
    source, gpus = gpu_inventory.inventory() if plan.device == "cuda" else ("", [gpu_inventory.Gpu("cpu")])
    if plan.device == "cuda":
        gpus = gpu_inventory.with_torch_names(gpus, uuids)
    if gpus and plan.inject in FAULTY:
        gpus[-1] = dataclasses.replace(gpus[-1], **FAULTY[plan.inject])
    versions = _versions(gpus)
    evidence = Evidence()
    evidence.facts = {
        **versions,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "gpus_expected": expected,
        "gpus_seen": seen,
        "gpu_models": models[:seen],
        "gpu_source": source or "no NVML",
        "gpus": [dataclasses.asdict(gpu) for gpu in gpus],
        "numa_nodes": {gpu.device: host_info.numa_node(gpu.bus_id) for gpu in gpus if gpu.bus_id},
        **host_info.facts(),
    }
    if error:
        evidence.not_measured.append(error)
    else:
        _count(plan, seen, expected, gpus, evidence)
    _expect(plan, versions, evidence)
    for gpu in gpus:
        failures, warnings = _health(gpu)
        evidence.failures += [f"{gpu.device}: {text}" for text in failures]
        evidence.warnings += [f"{gpu.device}: {text}" for text in warnings]
    evidence.warnings += _differences(gpus)
    _fabric(plan, gpus, evidence)
    _host(plan, evidence)
    return evidence


def _versions(gpus: list) -> dict[str, str | None]:
    """Versions that --expect can require; None: unknown on this node."""
    import torch

    nccl = torch.cuda.nccl.version() if hasattr(torch._C, "_nccl_version") else None
    cudnn = None
    with contextlib.suppress(RuntimeError):  # it asks the first GPU
        cudnn = str(torch.backends.cudnn.version()) if torch.backends.cudnn.is_available() else None
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, nccl)) if nccl else None,
        "cudnn": cudnn,
        "driver": next((gpu.driver for gpu in gpus if gpu.driver), None),
    }


def _count(plan: Plan, seen: int, expected: int, gpus: list, evidence: Evidence) -> None:
    """Compare the number of GPUs, and name the missing ones that the PCI bus shows."""
    from gpuworker.accept import host_info

    if seen == expected:
        return
    words = f"torch sees {seen or 'no'} GPU{'s' * (seen > 1)}, {expected} expected"
    known = {gpu.bus_id for gpu in gpus if not gpu.lost}
    missing = [address for address in host_info.nvidia_devices() if address not in known]
    if any(known) and missing and seen < expected:
        words += f"; on the PCI bus but not shown to this pod: {', '.join(missing)}"
    mig = any(gpu.mig for gpu in gpus)
    words += "; MIG is on: CUDA shows one instance to a process, so test whole GPUs" * mig
    if plan.device == "cuda" and (seen == 0 or mig):
        evidence.not_measured.append(words)  # a broken driver or a wrong pod, not a proven fault of a GPU
    else:
        evidence.failures.append(words)


def _expect(plan: Plan, versions: dict[str, str | None], evidence: Evidence) -> None:
    """Compare versions with the required ones; "570.86" stands for any 570.86.x."""
    expected = dict(plan.expect)
    if plan.injected("wrong-version"):
        expected.setdefault("torch", str(versions["torch"]))
        versions["torch"] = "0.0.0"
    for name, wanted in expected.items():
        found = versions.get(name)
        if name not in versions:
            evidence.not_measured.append(f"the version of {name} is unknown; known are {', '.join(versions)}")
        elif found is None:
            evidence.not_measured.append(f"the version of {name} cannot be read here, {wanted} is required")
        elif found != wanted and not found.startswith((f"{wanted}.", f"{wanted}+")):
            evidence.failures.append(f"{name} is {found}, {wanted} is required")


def _health(gpu) -> tuple[list[str], list[str]]:
    """Failures and warnings of a GPU from the driver's data."""
    from gpuworker.accept import gpu_state
    from gpuworker.runtime import gpu_telemetry

    if gpu.lost:
        return [f"the driver has lost it: {gpu.lost}"], []
    failures, warnings = [], []
    if gpu.ecc_uncorrected:
        failures.append(f"{gpu.ecc_uncorrected} uncorrectable memory errors since the driver started")
    if gpu.recovery_action:
        action = RECOVERY_ACTIONS.get(gpu.recovery_action, f"recovery action {gpu.recovery_action}")
        failures.append(f"the driver demands: {action}")
    if gpu.remap_failed:
        failures.append("it could not remap a bad row of its memory: replace it")
    if gpu.remap_pending:
        failures.append("a bad row of its memory is not yet remapped: reset the GPU")
    if gpu.pages_pending:
        failures.append("bad pages of its memory are not yet retired: reset the GPU")
    if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
        words = f"PCIe is ×{gpu.pcie_width} wide, GPU and slot can do ×{gpu.pcie_width_max}"
        warnings.append(f"{words}, at rest: the check of the links reads it under load")
    warnings += [f"{reason} at rest" for reason in gpu_telemetry.slowdowns(gpu.clock_reasons)]
    if (gpu.clock_reasons or 0) & gpu_telemetry.APPLICATION_CLOCKS:
        warnings.append(f"application clocks are set, {gpu.sm_mhz_max} MHz are possible")
    if gpu.power_limit_w and gpu.power_default_w and gpu.power_limit_w < 0.99 * gpu.power_default_w:
        warnings.append(f"power is capped at {gpu.power_limit_w:g} W of {gpu.power_default_w:g} W")
    unknown = [words for fields, words in SENSORS.items() if all(getattr(gpu, field) is None for field in fields)]
    if gpu.nvlinks_up and gpu.nvlink_errors is None:
        unknown.append("the errors of its NVLinks")
    if unknown and gpu.device != "cpu":
        warnings.append(f"the driver does not report {', '.join(unknown)}")
    if gpu.ecc is False:
        warnings.append("ECC is off: memory errors are neither corrected nor counted")
    if gpu.mig:
        warnings.append("MIG is on: figures of whole GPUs do not apply")
    fabric_failures, fabric_warnings = gpu_state.fabric(gpu)
    return failures + fabric_failures, warnings + fabric_warnings + gpu_state.users(gpu)


def _differences(gpus: list) -> list[str]:
    """Settings that differ between the GPUs of the node."""
    fields = {
        "name": "model",
        "ecc": "ECC",
        "sm_mhz_max": "highest clock",
        "pcie_gen_max": "PCIe generation",
        "pcie_width_max": "PCIe width",
        "power_limit_w": "power limit",
        "persistence": "persistence mode",
        "vbios": "VBIOS",
        "inforom": "InfoROM",
        "fabric_cluster": "NVLink domain",
        "fabric_clique": "fabric clique",
    }
    found = []
    for field, words in fields.items():
        values: dict[object, list[str]] = {}
        for gpu in gpus:
            if not gpu.lost:
                values.setdefault(getattr(gpu, field), []).append(gpu.device)
        if len(values) > 1:
            groups = "; ".join(f"{value} on {', '.join(devices)}" for value, devices in values.items())
            found.append(f"the GPUs differ in {words}: {groups}")
    return found


def _fabric(plan: Plan, gpus: list, evidence: Evidence) -> None:
    """Network ports, and how they reach the GPUs."""
    from gpuworker.accept import fabric

    ports = fabric.ports()
    if plan.inject in FAULTY_PORT:
        ports = [fabric.Port(f"mlx5_{index}/1", True, rate_gbps=400.0) for index in range(4)]
        ports[-1] = dataclasses.replace(ports[-1], **FAULTY_PORT[plan.inject])
    places = fabric.nearest(ports, {gpu.device: gpu.bus_id for gpu in gpus if gpu.bus_id})
    if plan.injected("far-adapter"):
        places = {f"cuda:{i}": {"where": fabric.NUMA if i < 3 else fabric.FAR, "adapters": []} for i in range(4)}
    evidence.facts |= fabric.facts(ports)
    evidence.facts |= {"nearest_adapters": places, "gpu_direct": fabric.gpu_direct()}
    failures, warnings = fabric.problems(ports)
    evidence.failures += failures
    evidence.warnings += warnings + fabric.far_from_adapters(places)
    if plan.device == "cuda" and any(port.up for port in ports) and not evidence.facts["gpu_direct"]:
        words = "neither nvidia_peermem is loaded nor dma-buf possible (open kernel module)"
        evidence.warnings.append(f"network adapters cannot reach the memory of GPUs: {words}")


def _host(plan: Plan, evidence: Evidence) -> None:
    """Host-side findings: errors in the kernel's log, shared memory, the clock."""
    from gpuworker.accept import host_info

    events = host_info.xids(Path("/dev/kmsg"))
    if plan.injected("xid"):
        events = [*(events or []), host_info.xid("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", 60.0)]
    if plan.injected("switch-error"):
        line = "nvidia-nvswitch2: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
        events = [*(events or []), host_info.xid(line, 60.0)]
    evidence.facts["xids"] = "not readable" if events is None else [dataclasses.asdict(event) for event in events]
    for event in events or []:
        if event.hardware:
            words = f"{event.kind} {event.code} of {event.bus_id}, {event.age_s / 60:.0f} min ago: {event.text}"
            recent = event.age_s < XID_RECENT_S and not event.repaired
            (evidence.failures if recent else evidence.warnings).append(words)
    shm = 64 << 20 if plan.injected("small-shm") else evidence.facts["shm_bytes"]
    if shm is not None and shm < MIN_SHM_BYTES and (plan.gpus > 1 or plan.injected("small-shm")):
        words = f"/dev/shm holds {shm >> 20} MiB, programs with many GPUs need {MIN_SHM_BYTES >> 20} and more"
        evidence.warnings.append(f"{words}: mount an emptyDir with medium: Memory there")
    share = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")
    if plan.device == "cuda" and (share != "100" or "CUDA_MPS_PIPE_DIRECTORY" in os.environ):
        evidence.warnings.append(f"MPS shares the GPUs with other programs ({share} % of the threads): test without it")
    # Not a finding in a rehearsal, which often runs in a virtual machine.
    if plan.device == "cuda" and evidence.facts["clock_synchronised"] is False:
        evidence.warnings.append("the kernel's clock is not synchronised: is chronyd or another NTP client running?")
    if plan.device == "cuda" and not evidence.facts["gpus"]:
        evidence.warnings.append(
            "neither NVML nor nvidia-smi answers: memory errors, slowdowns and link widths are unknown"
        )
