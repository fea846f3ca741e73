"""Problems that the facts of the links check show: what the driver reported about links under load.

The node judges what it has read, and a reader of reports judges the same facts again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuworker.accept import peer_comparison
from gpuworker.accept.check_spec import Plan
from gpuworker.accept.limits import Limits
from gpuworker.judgement.report import Evidence
from gpuworker.runtime import gpu_specs
from gpuworker.runtime.gpu_inventory import Gpu

# PCIe, one way, after line coding
GBPS_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
# of a Gpu
FIELDS = ("name", "pcie_gen_max", "pcie_width", "pcie_width_max", "nvlinks_up", "nvlinks_down")
# Counters of a Gpu -> kind and words.
ERRORS = {
    "nvlink_errors": ("nvlink-errors", "NVLink errors"),
    "pcie_replays": ("pcie-errors", "PCIe replays"),
}


def add_problems(evidence: Evidence, plan: Plan) -> None:
    """Append the problems that the facts show. Raises LookupError, TypeError or ValueError on
    damaged facts.
    """
    links = evidence.facts["links"]
    gpus = []
    for device, facts in links.items():
        gpus.append(Gpu(device, **{field: facts[field] for field in FIELDS if field in facts}))
        _pcie(gpus[-1], facts["pcie_width_under_load"], facts["pcie_gen_under_load"], evidence)
        _new_errors(device, facts.get("errors", {}), evidence)
    for device in plan.devices if plan.device == "cuda" else ():
        if device not in links:
            evidence.warn("unlisted", f"{device}: the driver does not report its links", device)
    _nvlink_faults(gpus, evidence)
    nvlink = Limits(tuple(gpu.name for gpu in gpus)).figures("nvlink_oneway")
    up = [gpu.nvlinks_up for gpu in gpus]
    if nvlink and len(gpus) > 1 and not any(up) and None not in up:
        words = f"no NVLink of {nvlink['model']} GPUs is up: is the fabric manager running?"
        evidence.fail("fabric-manager", words)
    peer_comparison.problems(evidence, plan.models)


def _pcie(gpu: Gpu, width: int | None, generation: int | None, evidence: Evidence) -> None:
    """PCIe under load (at rest a GPU may lower width and generation to save power), and what
    slot and GPU can do.
    """
    device, most_lanes, most_generation = gpu.device, gpu.pcie_width_max, gpu.pcie_gen_max
    if width and most_lanes and width < most_lanes:
        words = f"PCIe ran ×{width} wide under load, GPU and slot can do ×{most_lanes}"
        evidence.fail("pcie", f"{device}: {words}", device)
    if generation and most_generation and generation < most_generation:
        words = f"PCIe ran at generation {generation} under load, it supports {most_generation}"
        evidence.warn("pcie", f"{device}: {words}", device)
    model = gpu_specs.figures("pcie_x16", gpu.name)
    if not model or most_generation not in GBPS_PER_LANE or not most_lanes:
        return
    rate = GBPS_PER_LANE[most_generation] * most_lanes
    if rate <= 0.95 * model["specification"]:  # the limit is a share of what they can do
        words = f"PCIe can do generation {most_generation} ×{most_lanes} here, {rate:.3g} GB/s"
        known = f"{model['model']} can do {model['specification']:g}"
        act = "check slot, riser, firmware of the host and virtual machine"
        evidence.warn("pcie", f"{device}: {words}, but {known}: {act}", device)


def _new_errors(
    device: str, counts: Mapping[str, Sequence[int | None]], evidence: Evidence
) -> None:
    """Error counters that grew during this check: links repair such errors, which costs time."""
    for field, (first, last) in counts.items():
        if first is not None and last is not None and last > first:
            kind, name = ERRORS[field]
            words = f"{last - first} {name} during this check, {last} in all"
            evidence.warn(kind, f"{device}: {words}", device)


def _nvlink_faults(gpus: list[Gpu], evidence: Evidence) -> None:
    """GPUs with fewer links up than the model has, or than other GPUs.

    NVML lists the links of the chip, of which a board may have fewer. Cards without bridges have
    all links down.
    """
    most = max((gpu.nvlinks_up or 0 for gpu in gpus), default=0)
    for gpu in gpus if most else ():
        device, up, down = gpu.device, gpu.nvlinks_up or 0, gpu.nvlinks_down or 0
        has = gpu_specs.figures("nvlinks", gpu.name).get("specification")
        if has and up < has and up + down >= has:
            evidence.fail("nvlink-down", f"{device}: {up} of {has} NVLinks are up", device)
        elif up < most and gpu.nvlinks_up is not None:
            evidence.fail("nvlink-down", f"{device}: {up} NVLinks, other GPUs have {most}", device)
        elif gpu.nvlinks_up is None and not has:
            words = f"the driver does not report its NVLinks, other GPUs have {most}"
            evidence.warn("unknown", f"{device}: {words}", device)
        elif has and up < has:
            words = f"NVML reports {up} of {has} NVLinks: is nvidia-ml-py too old?"
            evidence.warn("unknown", f"{device}: {words}", device)
        elif down and not has:
            words = f"{up} of {up + down} NVLinks are up, whether this board has the others is not known"
            evidence.warn("nvlink-down", f"{device}: {words}", device)
