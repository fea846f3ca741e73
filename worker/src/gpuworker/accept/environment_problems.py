"""Problems that the facts of the environment check show: about GPUs, network ports and the host.

The node judges what it has read, and a reader of reports judges the same facts again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from gpuworker.accept import fabric
from gpuworker.accept.host_info import Xid
from gpuworker.judgement import xids
from gpuworker.judgement.check_spec import Plan
from gpuworker.judgement.kinds import KINDS
from gpuworker.judgement.majority import majority
from gpuworker.judgement.report import FAIL, INCOMPLETE, WARN, Evidence
from gpuworker.runtime import gpu_telemetry
from gpuworker.runtime.gpu_inventory import Gpu

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
RESETS = (1, 3, 4)
# Fields of the driver's data -> words; a value that disappears with a driver must not look like
# health.
SENSORS = {
    ("ecc_uncorrected",): "uncorrectable memory errors",
    ("remap_failed", "pages_pending"): "repairs of the memory",
    ("clock_reasons",): "reasons for low clocks",
    ("temperature_c",): "the temperature",
    ("pcie_replays",): "the replays of its PCIe link",
}
# What is equal on all GPUs of a node.
COMPARED = {
    "name": "model",
    "driver": "driver",
    "sm_mhz_max": "highest clock",
    "pcie_gen_max": "PCIe generation",
    "pcie_width_max": "PCIe width",
    "persistence": "persistence mode",
    "vbios": "VBIOS",
    "inforom": "InfoROM",
    "fabric_cluster": "NVLink domain",
    "fabric_clique": "fabric clique",
}
NOT_STARTED, IN_PROGRESS, COMPLETED = 1, 2, 3  # NVML_GPU_FABRIC_STATE_…
TRUE = 1  # of a part of the health mask; 2: false, 0: not supported
# Part of the health mask: lowest bit -> words.
UNHEALTHY = {0: "the bandwidth of its fabric is degraded", 4: "a route of its fabric is unhealthy"}
RECOVERING = {
    2: "a route of its fabric is being recovered",
    6: "its fabric recovers from access time-outs",
}
CONFIGURATION = {
    2: "a wrong system GUID",
    3: "a wrong serial number of the chassis",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible firmware of the GPU",
    7: "an invalid location",
    8: "an invalid state of the GPU",
}
PROHIBITED = 2  # NVML_COMPUTEMODE_PROHIBITED
# a context takes half a GiB; a reading covers up to the last second
IDLE_BYTES, IDLE_PERCENT = 1 << 30, 20
# a container's default of 64 MiB ends NCCL and data loaders of 8 GPUs with a bus error
MIN_SHM_BYTES = 1 << 30
XID_RECENT_S = 2 * 3600
FELL_OFF = 79  # Xid
UNSEEN = "GPU "  # start of the name of a GPU that torch has no name for
NOT_READABLE = "not readable"  # the fact "xids", if the kernel's log cannot be read


def add_problems(evidence: Evidence, plan: Plan) -> None:
    """Append the problems that the facts show.

    Raises LookupError, TypeError or ValueError on damaged facts."""
    facts = evidence.facts
    gpus = [Gpu(**each) for each in facts["gpus"]]
    if facts["cuda_error"] != "":
        kind = facts["cuda_error_kind"]
        evidence.incomplete(kind if kind in KINDS else "cuda-error", str(facts["cuda_error"]))
    else:
        _count(plan, gpus, evidence)
    for gpu in gpus:
        for verdict, kind, text in gpu_problems(gpu):
            evidence.add(verdict, kind, f"{gpu.device}: {text}", gpu.device)
    differences(gpus, evidence)
    _identity(plan, gpus, evidence)
    fabric.problems([fabric.Port(**each) for each in facts["ports"]], evidence)
    fabric.far_from_adapters(facts["nearest_adapters"], evidence)
    _host(plan, facts, evidence)


def _count(plan: Plan, gpus: list[Gpu], evidence: Evidence) -> None:
    """Compare the number of GPUs, and name the missing ones that the driver, the PCI bus or an
    Xid shows.
    """
    facts = evidence.facts
    seen, expected = facts["gpus_seen"], facts["gpus_expected"]
    if 0 < len(gpus) < seen and plan.device == "cuda":
        evidence.incomplete(
            "unlisted", f"the driver lists {len(gpus)} of the {seen} GPUs that torch sees"
        )
    if seen == expected:
        return
    verdict, kind = FAIL, "gpus-missing"
    words = f"torch sees {seen or 'no'} GPU{'s' * (seen > 1)}, {expected} expected"
    known = {gpu.bus_id for gpu in gpus if not gpu.lost}
    hidden = [address for address in facts["pci_gpus"] if address not in known]
    hidden = hidden if any(known) and seen < expected else []
    if hidden:
        words += f"; on the PCI bus but not shown to this pod: {', '.join(hidden)}"
    if plan.device == "cuda" and any(gpu.mig for gpu in gpus):
        verdict, kind = INCOMPLETE, "gpus-divided"
        words += "; MIG is on: CUDA shows one instance to a process, so test whole GPUs"
    elif plan.device == "cuda" and seen == 0:
        verdict = INCOMPLETE  # a broken driver or a wrong pod, not proven of a GPU
    fell_off = [xid.bus_id for xid in _xids(facts) if xid.code == FELL_OFF]
    unseen = (
        {gpu.device for gpu in gpus if gpu.device.startswith(UNSEEN)}
        or {_gpu_at(address, facts) for address in hidden}
        or {name for each in fell_off if (name := _gpu_at(each, facts)).startswith(UNSEEN)}
    )
    parts = unseen if len(unseen) == expected - seen == 1 else ()
    evidence.add(verdict, kind, words, *parts, seen=seen, expected=expected)


def _gpu_at(address: str, facts: Mapping) -> str:
    """The name of the GPU at a PCI address, which may lack the function, also of one that the
    driver does not list.
    """
    listed = (gpu["device"] for gpu in facts["gpus"] if gpu["bus_id"].startswith(address))
    on_bus = (f"{UNSEEN}{each}" for each in facts["pci_gpus"] if each.startswith(address))
    return next(listed, next(on_bus, f"{UNSEEN}{address}"))


def _xids(facts: Mapping) -> list[Xid]:
    return [Xid(**each) for each in facts["xids"]] if facts["xids"] != NOT_READABLE else []


def _identity(plan: Plan, gpus: list[Gpu], evidence: Evidence) -> None:
    """Every GPU of the plan is listed once, and no two are the same."""
    for what, values in (
        ("this GPU", [gpu.device for gpu in gpus]),
        ("this PCI address", [gpu.bus_id.strip().lower() for gpu in gpus]),
    ):
        twice = [value for value, count in Counter(values).items() if value and count > 1]
        for value in twice:
            evidence.incomplete("contradiction", f"{value}: the driver lists {what} twice", value)
    for device in plan.devices if plan.device == "cuda" and gpus else ():
        if device not in {gpu.device for gpu in gpus}:
            evidence.warn(
                "unlisted", f"{device}: none of the GPUs that the driver lists is this one", device
            )


def _host(plan: Plan, facts: Mapping, evidence: Evidence) -> None:
    """Errors in the kernel's log, shared memory, the clock."""
    for event in _xids(facts):
        of_switch = event.kind == "SXid"
        kind, hardware = xids.judged(event.code, of_switch)
        if hardware:
            words = (
                f"{event.kind} {event.code} of {event.bus_id}, {event.age_s / 60:.0f} min ago: "
                f"{event.text}"
            )
            recent = event.age_s < XID_RECENT_S and not event.repaired
            verdict = FAIL if recent else WARN
            part = event.bus_id if of_switch else _gpu_at(event.bus_id, facts)
            evidence.add(verdict, kind, words, part, code=event.code)
    shm = facts["shm_bytes"]
    if shm is not None and shm < MIN_SHM_BYTES and (plan.gpus > 1 or facts.get("shm_needed")):
        words = (
            f"/dev/shm holds {shm >> 20} MiB, programs with many GPUs need {MIN_SHM_BYTES >> 20} "
            "and more"
        )
        evidence.warn("setting", f"{words}: mount an emptyDir with medium: Memory there")
    if plan.device != "cuda":
        return  # a rehearsal often runs in a virtual machine, whose clock is not its own
    if share := facts["mps_share"]:
        words = (
            f"MPS shares the GPUs with other programs ({share} % of the threads): test without it"
        )
        evidence.warn("other-program", words)
    if facts["clock_synchronised"] is False:
        words = "the kernel's clock is not synchronised: is chronyd or another NTP client running?"
        evidence.warn("clock", words)
    if not facts["gpus"]:
        words = (
            "neither NVML nor nvidia-smi answers: memory errors, slowdowns and link widths are "
            "unknown"
        )
        evidence.warn("unreadable", words)


def gpu_problems(gpu: Gpu) -> Iterator[tuple[str, str, str]]:
    """Verdict, kind and words of each problem of a GPU that the driver's data shows."""
    if gpu.lost:
        yield FAIL, "gpu-lost", f"the driver has lost it: {gpu.lost}"
        return
    if gpu.ecc_uncorrected:
        yield (
            FAIL,
            "ecc",
            f"{gpu.ecc_uncorrected} uncorrectable memory errors since the driver started",
        )
    if gpu.recovery_action:
        action = RECOVERY_ACTIONS.get(gpu.recovery_action, f"recovery action {gpu.recovery_action}")
        kind = "reset-needed" if gpu.recovery_action in RESETS else "reboot-needed"
        yield FAIL, kind, f"the driver demands: {action}"
    if gpu.remap_failed:
        yield FAIL, "row-remap-failed", "it could not remap a bad row of its memory: replace it"
    if gpu.remap_pending:
        yield FAIL, "reset-needed", "a bad row of its memory is not yet remapped: reset the GPU"
    if gpu.pages_pending:
        yield FAIL, "reset-needed", "bad pages of its memory are not yet retired: reset the GPU"
    if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
        words = f"PCIe is ×{gpu.pcie_width} wide, GPU and slot can do ×{gpu.pcie_width_max}"
        yield WARN, "pcie", f"{words}, at rest: the check of the links reads it under load"
    for reason in gpu_telemetry.slowdowns(gpu.clock_reasons):
        yield WARN, "slowdown", f"{reason} at rest"
    if (gpu.clock_reasons or 0) & gpu_telemetry.APPLICATION_CLOCKS:
        yield WARN, "clocks-set", f"application clocks are set, {gpu.sm_mhz_max} MHz are possible"
    if gpu.power_limit_w and gpu.power_default_w and gpu.power_limit_w < 0.95 * gpu.power_default_w:
        yield (
            WARN,
            "power-capped",
            f"power is capped at {gpu.power_limit_w:g} W of {gpu.power_default_w:g} W",
        )
    unknown = [
        words
        for fields, words in SENSORS.items()
        if all(getattr(gpu, field) is None for field in fields)
    ]
    if gpu.nvlinks_up and gpu.nvlink_errors is None:
        unknown.append("the errors of its NVLinks")
    if not gpu.uuid.strip():
        unknown.append("its UUID, by which a copy of a report is recognised")
    if unknown and gpu.device != "cpu":
        yield WARN, "unknown", f"the driver does not report {', '.join(unknown)}"
    if gpu.ecc is False:
        yield WARN, "setting", "ECC is off: memory errors are neither corrected nor counted"
    if gpu.mig:
        yield WARN, "setting", "MIG is on: figures of whole GPUs do not apply"
    yield from _fabric(gpu)
    yield from _users(gpu)


def _fabric(gpu: Gpu) -> Iterator[tuple[str, str, str]]:
    """Verdict, kind and words of each problem of its fabric. A GPU without NVSwitch has no
    state.
    """
    if gpu.fabric_state in (NOT_STARTED, IN_PROGRESS):
        words = "has not begun" if gpu.fabric_state == NOT_STARTED else "is in progress"
        yield (
            WARN,
            "fabric-manager",
            f"its registration with the fabric {words}: is the fabric manager running?",
        )
    if gpu.fabric_state != COMPLETED:
        return
    mask = gpu.fabric_health or 0
    if gpu.fabric_status:
        words = (
            f"its registration with the fabric ended with error {gpu.fabric_status}: see the "
            "fabric manager"
        )
        yield FAIL, "fabric-manager", words
    for shift, words in UNHEALTHY.items():
        if mask >> shift & 3 == TRUE:
            yield FAIL, "fabric-degraded", words
    if problem := CONFIGURATION.get(mask >> 8 & 15):
        yield FAIL, "fabric-manager", f"the fabric manager found {problem}"
    for shift, words in RECOVERING.items():
        if mask >> shift & 3 == TRUE:
            yield WARN, "fabric-degraded", words


def _users(gpu: Gpu) -> Iterator[tuple[str, str, str]]:
    """The same of other programs on the GPU (time-slicing, a leftover), without which it must be
    tested.
    """
    found = [f"another program uses it: {program}" for program in gpu.programs]
    if not found and (gpu.memory_used_bytes or 0) > IDLE_BYTES:
        found.append(f"another program uses {gpu.memory_used_bytes / 2**30:.1f} GiB of its memory")
    if not found and (gpu.busy_percent or 0) > IDLE_PERCENT:
        found.append(
            f"another program uses it: it was busy for {gpu.busy_percent} % of the time at rest"
        )
    for words in found:
        yield WARN, "other-program", words
    if gpu.compute_mode == PROHIBITED:
        yield (
            WARN,
            "setting",
            "its compute mode prohibits all programs: nvidia-smi --compute-mode=DEFAULT",
        )


def differences(gpus: list[Gpu], evidence: Evidence) -> None:
    """Warn of settings in which a GPU differs from most of the node, or the node without a most.

    That ECC is off is a problem of its own."""
    reachable = [gpu for gpu in gpus if not gpu.lost]
    for field, words in COMPARED.items() if reachable else ():
        values = {gpu.device: getattr(gpu, field) for gpu in reachable}
        usual, agree, odd = majority(values)
        for device in odd if agree else ():
            text = f"its {words} is {values[device]}, that of {agree} other GPUs is {usual}"
            evidence.warn("differ", f"{device}: {text}", device)
        if not agree:
            several = ", ".join(f"{value} of {device}" for device, value in values.items())
            evidence.warn("differ", f"the GPUs differ in {words}: {several}")
