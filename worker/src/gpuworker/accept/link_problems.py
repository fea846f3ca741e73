"""Problems that the facts of the links check show: what the driver reported about links under load.

The node judges what it has read, and a reader of reports judges the same facts again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuworker.accept import peer_comparison
from gpuworker.accept.check_spec import Evidence, Plan
from gpuworker.accept.limits import Limits
from gpuworker.runtime import gpu_specs
from gpuworker.runtime.gpu_inventory import Gpu

GBPS_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}  # PCIe, one way, after line coding
ERRORS = {"nvlink_errors": "NVLink errors", "pcie_replays": "PCIe replays"}  # counters of a Gpu -> words


def add_problems(evidence: Evidence, plan: Plan) -> None:
    """Append failures and warnings. Raises LookupError, TypeError or ValueError on damaged facts."""
    links = evidence.facts["links"]
    gpus = []
    for device, facts in links.items():
        known = ("name", "pcie_gen_max", "pcie_width_max", "nvlinks_up", "nvlinks_down")
        gpus.append(Gpu(device, **{field: facts[field] for field in known if field in facts}))
        evidence.failures += _narrow(gpus[-1], facts["pcie_width_under_load"])
        evidence.warnings += _slow(gpus[-1], facts["pcie_gen_under_load"]) + _claims_less(gpus[-1])
        evidence.warnings += _new_errors(device, facts.get("errors", {}))
    for device in plan.devices if plan.device == "cuda" else ():
        if device not in links:
            evidence.warnings.append(f"{device}: the driver does not report its links")
    failures, warnings = _nvlink_faults(gpus)
    evidence.failures += failures
    evidence.warnings += warnings
    nvlink = Limits(tuple(gpu.name for gpu in gpus)).figures("nvlink_oneway")
    up = [gpu.nvlinks_up for gpu in gpus]
    if nvlink and len(gpus) > 1 and not any(up) and None not in up:
        evidence.warnings.append(f"no NVLink of {nvlink['model']} GPUs is up: is the fabric manager running?")
    peer_comparison.problems(evidence)


def _narrow(gpu, width: int | None) -> list[str]:
    """A failure if PCIe was narrow under load. At rest a GPU may lower width and generation to save power."""
    if not width or not gpu.pcie_width_max or width >= gpu.pcie_width_max:
        return []
    return [f"{gpu.device}: PCIe ran ×{width} wide under load, GPU and slot can do ×{gpu.pcie_width_max}"]


def _slow(gpu, generation: int | None) -> list[str]:
    """A warning if PCIe ran below its generation under load."""
    if not generation or not gpu.pcie_gen_max or generation >= gpu.pcie_gen_max:
        return []
    return [f"{gpu.device}: PCIe ran at generation {generation} under load, it supports {gpu.pcie_gen_max}"]


def _new_errors(device: str, counts: Mapping[str, Sequence[int | None]]) -> list[str]:
    """Warnings for error counters that grew during this check: links repair such errors, which costs time."""
    found = []
    for field, (first, last) in counts.items():
        if first is not None and last is not None and last > first:
            found.append(f"{device}: {last - first} {ERRORS[field]} during this check, {last} in all")
    return found


def _claims_less(gpu) -> list[str]:
    """A warning if GPU and slot can do less than the model: the limit is a share of what they can do."""
    model = gpu_specs.figures("pcie_x16", gpu.name)
    if not model or gpu.pcie_gen_max not in GBPS_PER_LANE or not gpu.pcie_width_max:
        return []
    rate = GBPS_PER_LANE[gpu.pcie_gen_max] * gpu.pcie_width_max
    if rate > 0.95 * model["specification"]:
        return []
    words = f"PCIe can do generation {gpu.pcie_gen_max} ×{gpu.pcie_width_max} here, {rate:.3g} GB/s"
    known = f"{model['model']} can do {model['specification']:g}"
    return [f"{gpu.device}: {words}, but {known}: check slot, riser, firmware of the host and virtual machine"]


def _nvlink_faults(gpus: list) -> tuple[list[str], list[str]]:
    """Failures and warnings: GPUs with fewer links up than the model has, or than other GPUs.

    NVML lists the links of the chip, of which a board may have fewer. Cards without bridges have all links down.
    """
    most = max((gpu.nvlinks_up or 0 for gpu in gpus), default=0)
    failures, warnings = [], []
    for gpu in gpus if most else ():
        up, down = gpu.nvlinks_up or 0, gpu.nvlinks_down or 0
        has = gpu_specs.figures("nvlinks", gpu.name).get("specification")
        if has and up < has and up + down >= has:
            failures.append(f"{gpu.device}: {up} of {has} NVLinks are up")
        elif up < most and gpu.nvlinks_up is not None:
            failures.append(f"{gpu.device}: {up} NVLinks, other GPUs have {most}")
        elif gpu.nvlinks_up is None and not has:
            warnings.append(f"{gpu.device}: the driver does not report its NVLinks, other GPUs have {most}")
        elif has and up < has:
            warnings.append(f"{gpu.device}: NVML reports {up} of {has} NVLinks: is nvidia-ml-py too old?")
        elif down and not has:
            words = "whether this board has the others is not known"
            warnings.append(f"{gpu.device}: {up} of {up + down} NVLinks are up, {words}")
    return failures, warnings
