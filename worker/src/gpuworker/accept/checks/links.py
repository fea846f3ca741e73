"""Every link of a GPU, to host and other GPUs, reaches its bandwidth and delivers data unchanged.

Host links: copies from and to pinned memory near the GPU. One GPU is judged at a time, since GPUs
may share an uplink. Peer links: each GPU to each other one, alone. GB/s = bytes / median time /
1e9. The limit of a host link comes from its PCIe generation and width, that of a peer link from the
model's NVLink rate, if the driver lists NVLinks.

A rehearsal copies between buffers of the CPU. Not yet run with two GPUs.
"""

from __future__ import annotations

import math
import os
import statistics
import time

from gpuworker.accept import host_info
from gpuworker.judgement import peer_comparison
from gpuworker.judgement.check_spec import Measure, Plan, Spec
from gpuworker.judgement.limits import Limits
from gpuworker.judgement.report import Evidence
from gpuworker.runtime import gpu_inventory, gpu_specs, gpu_telemetry
from gpuworker.runtime.gpu_inventory import Gpu

SPEC = Spec(
    tag="LINKS",
    seconds={"quick": 6, "full": 30, "burn-in": 60, "prolog": 1},
    measures={
        "link_h2d": Measure("GB/s", "from pinned host memory to the GPU", limit="host_link"),
        "link_d2h": Measure("GB/s", "from the GPU to pinned host memory", limit="host_link"),
        "link_peer": Measure("GB/s", "from one GPU to another", limit="peer_link", each="pair"),
    },
    prolog=("link_h2d", "link_d2h"),
    faults={
        "slow-link": "slow",
        "slow-host-link": "slow",
        "corrupt-link": "wrong-words",
        "narrow-link": "pcie",
        "narrow-lanes": "pcie",
        "link-errors": "nvlink-errors",
        "missing-nvlink": "nvlink-down",
    },
)
# PCIe, one way, after line coding
GBPS_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
# of a Gpu
FIELDS = ("name", "pcie_gen_max", "pcie_width", "pcie_width_max", "nvlinks_up", "nvlinks_down")
# Counters of a Gpu -> kind and words.
ERRORS = {
    "nvlink_errors": ("nvlink-errors", "NVLink errors"),
    "pcie_replays": ("pcie-errors", "PCIe replays"),
}
BYTES = {"cuda": 256 << 20, "cpu": 8 << 20}
# all GPUs together, long enough to read the links' state from the driver
SUSTAIN_S = {"cuda": 0.5, "cpu": 0}
# Injected fault -> changes to the links of the last GPU.
FAULTY = {
    "narrow-link": {"pcie_gen_max": 5, "pcie_width_max": 16, "pcie_gen_under_load": 1},
    "narrow-lanes": {"pcie_width_max": 16, "pcie_width_under_load": 8},
    "missing-nvlink": {"nvlinks_up": 17, "nvlinks_down": 1},
    "link-errors": {"errors": {"nvlink_errors": [2, 7]}},
}
SLOW = {"slow-host-link": "link_h2d", "slow-link": "link_peer"}  # injected fault -> number
REPEATS = {"quick": 8, "full": 40, "burn-in": 100, "prolog": 8}
ROUNDS_OF_A_PROLOG = 2


def measure(plan: Plan) -> Evidence:
    from gpuworker.accept.kernels import timing

    evidence = Evidence()
    devices = timing.test_devices(plan, rehearsal=3)
    if not devices:
        return evidence
    gpus = _gpus(plan, devices)
    with gpu_telemetry.Sampler(timing.uuids(plan)) as sampler:
        _measure_links(devices, _near(gpus, evidence), plan, evidence)
    links = links_of(gpus, _gpus(plan, devices), gpu_telemetry.summary(sampler.readings))
    if gpus:
        links[gpus[-1].device] |= FAULTY.get(plan.inject, {})
    evidence.facts["links"] = links
    if len(devices) == 1:
        evidence.inapplicable["link_peer"] = "one GPU has no peer"
    return evidence


def _gpus(plan: Plan, devices: list) -> list[Gpu]:
    """What the driver reports now."""
    from gpuworker.accept.kernels import timing

    if plan.device == "cpu":
        return [Gpu(str(device)) for device in devices]
    return gpu_inventory.with_torch_names(gpu_inventory.inventory()[1], timing.uuids(plan))


def problems(evidence: Evidence, plan: Plan) -> None:
    """Append the problems that the facts show. Raises LookupError, TypeError or ValueError on
    damaged facts.
    """
    links = evidence.facts["links"]
    evidence.ceilings = ceilings(links, plan)
    gpus = []
    for device, facts in links.items():
        gpus.append(Gpu(device, **{field: facts[field] for field in FIELDS if field in facts}))
        _pcie(gpus[-1], facts["pcie_width_under_load"], facts["pcie_gen_under_load"], evidence)
        # links repair such errors, which costs time
        for field, (first, last) in facts.get("errors", {}).items():
            if None not in (first, last) and last > first:
                kind, name = ERRORS[field]
                words = f"{last - first} {name} during this check, {last} in all"
                evidence.warn(kind, f"{device}: {words}", device)
    for device in plan.devices if plan.device == "cuda" else ():
        if device not in links:
            evidence.warn("unlisted", f"{device}: the driver does not report its links", device)
    _nvlink_faults(gpus, evidence)
    nvlink = any(gpu.nvlinks_up for gpu in gpus)
    own = {} if nvlink else {"link_peer": peer_comparison.PCIE_PEERS}
    peer_comparison.problems(evidence, plan, *SPEC.measures, **own)


def _pcie(gpu: Gpu, width: int | None, generation: int | None, evidence: Evidence) -> None:
    """PCIe under load (at rest a GPU may lower width and generation to save power), and what
    slot and GPU can do.
    """
    device, lanes, newest = gpu.device, gpu.pcie_width_max, gpu.pcie_gen_max
    if (width or math.inf) < (lanes or 0):
        words = f"PCIe ran ×{width} wide under load, GPU and slot can do ×{lanes}"
        evidence.fail("pcie", f"{device}: {words}", device)
    if (generation or math.inf) < (newest or 0):
        words = f"PCIe ran at generation {generation} under load, it supports {newest}"
        evidence.warn("pcie", f"{device}: {words}", device)
    model = gpu_specs.figures("pcie_x16", gpu.name)
    rate = GBPS_PER_LANE.get(newest, 0) * (lanes or 0)
    if model and 0 < rate <= 0.95 * model["specification"]:  # the limit is a share of `rate`
        words = f"PCIe can do generation {newest} ×{lanes} here, {rate:.3g} GB/s"
        known = f"{model['model']} can do {model['specification']:g}"
        act = "check slot, riser, firmware of the host and virtual machine"
        evidence.warn("pcie", f"{device}: {words}, but {known}: {act}", device)


def _nvlink_faults(gpus: list[Gpu], evidence: Evidence) -> None:
    """GPUs with fewer links up than the model has, or than other GPUs.

    NVML lists the links of the chip, of which a board may have fewer. Cards without bridges have
    all links down.
    """
    nvlink = Limits(tuple(gpu.name for gpu in gpus)).figures("nvlink_oneway")
    known = [gpu.nvlinks_up for gpu in gpus]
    most = max((up or 0 for up in known), default=0)
    if nvlink and len(gpus) > 1 and not most and None not in known:
        words = f"no NVLink of {nvlink['model']} GPUs is up: is the fabric manager running?"
        evidence.fail("fabric-manager", words)
    for gpu in gpus if most else ():
        device, up, down = gpu.device, gpu.nvlinks_up or 0, gpu.nvlinks_down or 0
        has = gpu_specs.figures("nvlinks", gpu.name).get("specification", 0)
        if up < has <= up + down:
            evidence.fail("nvlink-down", f"{device}: {up} of {has} NVLinks are up", device)
        elif up < most and gpu.nvlinks_up is not None:
            evidence.fail("nvlink-down", f"{device}: {up} NVLinks, other GPUs have {most}", device)
        elif gpu.nvlinks_up is None and not has:
            words = f"the driver does not report its NVLinks, other GPUs have {most}"
            evidence.warn("unknown", f"{device}: {words}", device)
        elif up < has:
            words = f"NVML reports {up} of {has} NVLinks: is nvidia-ml-py too old?"
            evidence.warn("unknown", f"{device}: {words}", device)
        elif down and not has:
            words = (
                f"{up} of {up + down} NVLinks are up, whether this board has the others is not "
                "known"
            )
            evidence.warn("nvlink-down", f"{device}: {words}", device)


def _near(gpus: list, evidence: Evidence) -> dict[str, set[int]]:
    """CPUs near each GPU. A copy from the memory of another socket is slower, which is not a
    fault of the link.
    """
    near = {gpu.device: host_info.local_cpus(gpu.bus_id) for gpu in gpus if gpu.bus_id}
    for device, cpus in near.items():
        if cpus and not cpus & os.sched_getaffinity(0):
            words = (
                "this pod may not use any CPU of its NUMA node, so its host link is measured from "
                "another one"
            )
            evidence.warn("far-cpus", f"{device}: {words}", device)
    return near


def _links(devices: list, near: dict[str, set[int]], here) -> dict[str, dict]:
    """Number -> the links that it is measured of, by their names. `here`: what they carry."""
    import torch

    from gpuworker.accept.kernels import timing
    from gpuworker.accept.kernels.copies import Link

    def buffers(device) -> list[torch.Tensor]:
        """A filled and an empty one of the device, and of the host near it."""
        with host_info.bound_to(near.get(str(device), set())):
            pinned = device.type == "cuda"
            host, back = (torch.zeros_like(here, pin_memory=pinned) for _ in range(2))
            sent = here.to(device)
            return [sent, torch.zeros_like(sent), host.copy_(here), back]

    at = timing.run_on_all(devices, buffers)
    found: dict[str, dict] = {name: {} for name in SPEC.measures}
    for device in devices:
        sent, received, host, back = at[device]
        found["link_h2d"][str(device)] = Link(device, host, received)
        found["link_d2h"][str(device)] = Link(device, sent, back)
        for other in devices:
            if other != device:
                found["link_peer"][f"{device}→{other}"] = Link(device, sent, at[other][1])
    return found


def _turns(links: dict, near: dict[str, set[int]], rounds: int, repeats: int, slow: str) -> dict:
    """Seconds of each copy, by link: one at a time, so that a disturbance of the host affects all.
    `slow`: the link with an injected fault.
    """
    from gpuworker.accept.kernels import timing

    found: dict[str, list[float]] = {name: [] for name in links}
    for _ in range(rounds):
        for name, link in links.items():

            def run(device, link=link, delay_s: float = timing.HOLD_S * (name == slow)):
                with host_info.bound_to(near.get(str(device), set())):
                    return link.seconds(repeats, delay_s)

            found[name] += timing.run_on_all([link.device], run)[link.device]
    return found


def _measure_links(
    devices: list, near: dict[str, set[int]], plan: Plan, evidence: Evidence
) -> None:
    from gpuworker.accept.kernels import copies, timing

    size, repeats = BYTES[plan.device], 1 + REPEATS[plan.level] // 8
    here = copies.content(size // 4)
    ways_of = _links(devices, near, here)
    for name in SPEC.measures_at(plan.level):
        links = ways_of[name]
        last = next(reversed(links), "")
        slow = last * (SLOW.get(plan.inject) == name)
        _turns(links, near, 1, repeats, slow)  # warm-up
        # Twice, and the better series counts: a healthy H100 had 38 GB/s for a moment, and 55
        # before and after.
        rounds = 4 if name == "link_peer" else 8  # a node has 56 of them
        rounds = ROUNDS_OF_A_PROLOG if plan.level == "prolog" else rounds
        first, second = (_turns(links, near, rounds, repeats, slow) for _ in range(2))
        taken = {each: min(first[each], second[each], key=statistics.median) for each in links}
        peer_comparison.record(evidence, name, "GB/s", size / 1e9, taken, plan.device)
        if name == "link_h2d" and plan.level != "prolog":
            end = time.monotonic() + SUSTAIN_S[plan.device]
            while time.monotonic() < end:
                timing.run_on_all(devices, lambda device, links=links: links[str(device)].copy())
        for label, link in links.items():
            flip = label == last and name == "link_peer" and plan.injected("corrupt-link")
            if wrong := link.wrong_words(here, flip):
                words = f"{label} delivered {wrong} wrong words of {size // 4} ({name})"
                evidence.fail("wrong-words", words, label)


def links_of(before: list[Gpu], after: list[Gpu], under_load: dict[str, dict]) -> dict[str, dict]:
    """What the driver reports of the links of each GPU, before and after the load."""
    links, later = {}, {gpu.device: gpu for gpu in after}
    for gpu in before:
        load, both = under_load.get(gpu.device, {}), (gpu, later.get(gpu.device, gpu))
        links[gpu.device] = {field: getattr(gpu, field) for field in FIELDS} | {
            "pcie_gen_under_load": load.get("pcie_gen_max"),
            "pcie_width_under_load": load.get("pcie_width_max"),
            "errors": {field: [getattr(each, field) for each in both] for field in ERRORS},
        }
    return links


def ceilings(links: dict[str, dict], plan: Plan) -> dict[str, tuple[float, str]]:
    """What the host links can do, by what the driver reports of them."""
    rates = [
        (GBPS_PER_LANE[generation] * width, f"PCIe generation {generation} ×{width}")
        for link in links.values()
        if (generation := link["pcie_gen_max"]) in GBPS_PER_LANE
        and (width := link["pcie_width_max"])
    ]
    if not rates or plan.device == "cpu":
        return {}
    return dict.fromkeys(("link_h2d", "link_d2h"), max(rates))
