"""Every link of a GPU, to the host and to each other GPU, reaches its bandwidth and delivers data unchanged.

Host links: copies from and to pinned memory near the GPU, each direction alone and both together.
One GPU is judged at a time, since GPUs may share an uplink (their joint rate is in the facts). Peer
links: each GPU to each other one, alone. GB/s = bytes / median time / 1e9. The limit of a host link
comes from its PCIe generation and width, that of a peer link from the model's NVLink rate, if the
driver lists NVLinks.

A rehearsal copies between buffers of the CPU. Not yet run with two GPUs.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence

from gpuworker.accept import host_info, peer_comparison
from gpuworker.accept.check_spec import DEVICES, Measure, Plan, Spec
from gpuworker.accept.limits import Limits
from gpuworker.judgement.report import Evidence, Measurement
from gpuworker.runtime import gpu_inventory, gpu_specs, gpu_telemetry
from gpuworker.runtime.gpu_inventory import Gpu

SPEC = Spec(
    tag="LINKS",
    seconds={"quick": 6, "full": 30, "burn-in": 60},
    process=DEVICES,
    measures={
        "link_h2d": Measure("GB/s", "from pinned host memory to the GPU", limit="host_link"),
        "link_d2h": Measure("GB/s", "from the GPU to pinned host memory", limit="host_link"),
        "link_both": Measure(
            "GB/s",
            "sum of both directions at the same time",
            meaningful=(1, 1200),  # NVLink-C2C of Grace: 900
        ),
        "link_peer": Measure("GB/s", "from one GPU to another", limit="peer_link", each="pair"),
    },
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
SUSTAIN_S = 0.5  # all GPUs together, long enough to read the links' state from the driver
# Injected fault -> changes to the links of the last GPU.
FAULTY = {
    "narrow-link": {"pcie_gen_max": 5, "pcie_width_max": 16, "pcie_gen_under_load": 1},
    "narrow-lanes": {"pcie_width_max": 16, "pcie_width_under_load": 8},
    "missing-nvlink": {"nvlinks_up": 17, "nvlinks_down": 1},
    "link-errors": {"errors": {"nvlink_errors": [2, 7]}},
}
REPEATS = {"quick": 8, "full": 40, "burn-in": 100}


def measure(plan: Plan) -> Evidence:
    from gpuworker.accept.kernels import timing

    evidence = Evidence()
    devices = timing.test_devices(plan, rehearsal=3)
    if not devices:
        return evidence
    if plan.device == "cuda":
        gpus = gpu_inventory.with_torch_names(gpu_inventory.inventory()[1], timing.uuids(plan))
    else:
        gpus = [Gpu(str(device)) for device in devices]
    with gpu_telemetry.Sampler(timing.uuids(plan)) as sampler:
        _host(devices, _near(gpus, evidence), plan, evidence)
    under_load = gpu_telemetry.summary(sampler.readings)
    after = {gpu.uuid: gpu for gpu in gpu_inventory.inventory()[1]} if plan.device == "cuda" else {}
    links = links_of(gpus, after, under_load)
    if gpus:
        links[gpus[-1].device] |= FAULTY.get(plan.inject, {})
    evidence.facts["links"] = links
    evidence.ceilings = ceilings(links, plan)
    if len(devices) > 1:
        _peers(devices, any(link["nvlinks_up"] for link in links.values()), plan, evidence)
    else:
        evidence.inapplicable["link_peer"] = "one GPU has no peer"
    return evidence


def problems(evidence: Evidence, plan: Plan) -> None:
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


def _near(gpus: list, evidence: Evidence) -> dict[str, set[int]]:
    """CPUs near each GPU. A copy from the memory of another socket is slower, which is not a
    fault of the link.
    """
    near = {gpu.device: host_info.local_cpus(gpu.bus_id) for gpu in gpus if gpu.bus_id}
    for device, cpus in near.items():
        if cpus and not cpus & os.sched_getaffinity(0):
            words = "this pod may not use any CPU of its NUMA node, so its host link is measured from another one"
            evidence.warn("far-cpus", f"{device}: {words}", device)
    return near


def _host(devices: list, near: dict[str, set[int]], plan: Plan, evidence: Evidence) -> None:
    from gpuworker.accept.kernels import copies, timing

    size, repeats = BYTES[plan.device], REPEATS[plan.level]

    def host_link(device) -> copies.HostLink:
        with host_info.bound_to(near.get(str(device), set())):
            return copies.HostLink(device, size)

    hosts = timing.run_on_all(devices, host_link)
    for name in ("link_h2d", "link_d2h", "link_both"):
        moved = size / 1e9 * (2 if name == "link_both" else 1)

        def batch(device, name: str = name) -> list[float]:
            slow = plan.injected("slow-host-link") and name == "link_h2d" and device == devices[-1]
            with host_info.bound_to(near.get(str(device), set())):
                return hosts[device].seconds(name, 1 + repeats // 8, timing.HOLD_S if slow else 0.0)

        def in_turns(batch=batch) -> dict:  # so that a disturbance of the host affects all devices
            found: dict = {device: [] for device in devices}
            for _ in range(8):
                for device in devices:
                    found[device] += timing.run_on_all([device], batch)[device]
            return found

        timing.run_on_all(devices, batch)  # warm-up
        first = in_turns()
        shared: dict = {device: [] for device in devices}
        end = time.monotonic() + (SUSTAIN_S if plan.device == "cuda" else 0)
        while not shared[devices[0]] or time.monotonic() < end:
            for device, found in timing.run_on_all(devices, batch).items():
                shared[device] += found
        # Twice, and the better series counts: a healthy H100 had 38 GB/s for a moment, and 55
        # before and after.
        second = in_turns()
        taken = {
            device: min(first[device], second[device], key=statistics.median) for device in devices
        }
        peer_comparison.record(evidence, name, "GB/s", moved, taken, plan.device)
        together = {str(d): moved / statistics.median(found) for d, found in shared.items()}
        evidence.facts[name] = {"bytes": size, "together_gbps": together}
    for device in devices:
        if wrong := hosts[device].wrong_words():
            words = f"{device}: {wrong} words differ after a copy to the GPU and back"
            evidence.fail("wrong-words", words, device)


def links_of(gpus: list, after: dict, under_load: dict[str, dict]) -> dict[str, dict]:
    """What the driver reports of the links of each GPU. `after`: UUID -> GPU after the load;
    at rest a GPU may lower generation and width to save power.
    """
    links = {}
    for gpu in gpus:
        load, later = under_load.get(gpu.device, {}), after.get(gpu.uuid, gpu)
        links[gpu.device] = {field: getattr(gpu, field) for field in FIELDS} | {
            "pcie_gen_under_load": load.get("pcie_gen_max"),
            "pcie_width_under_load": load.get("pcie_width_max"),
            "errors": {field: [getattr(each, field) for each in (gpu, later)] for field in ERRORS},
        }
    return links


def ceilings(links: dict[str, dict], plan: Plan) -> dict[str, tuple[float, str]]:
    """What the links can do, by what the driver reports of them."""
    found, per_lane = {}, GBPS_PER_LANE
    rates = [
        (per_lane[generation] * width, f"PCIe generation {generation} ×{width}")
        for link in links.values()
        if (generation := link["pcie_gen_max"]) in per_lane and (width := link["pcie_width_max"])
    ]
    if rates and plan.device == "cuda":
        rate, origin = max(rates)
        found = {
            "link_h2d": (rate, origin),
            "link_d2h": (rate, origin),
            "link_both": (2 * rate, origin),
        }
    nvlink = Limits(tuple(link["name"] for link in links.values())).figures("nvlink_oneway")
    if nvlink and any(link["nvlinks_up"] for link in links.values()):
        origin = f"one-way NVLink rate of {nvlink['model']}: {nvlink['source']}"
        found["link_peer"] = nvlink["specification"], origin
    return found


def _peers(devices: list, nvlink: bool, plan: Plan, evidence: Evidence) -> None:
    """Measure all pairs, one direction at a time."""
    from gpuworker.accept.kernels import copies, timing

    size, repeats = BYTES[plan.device], REPEATS[plan.level]
    pairs = [(a, b) for a in devices for b in devices if a != b]
    buffers = {device: copies.PeerBuffers(device, size) for device in devices}
    slow, faulty = (timing.HOLD_S if plan.injected("slow-link") else 0.0), pairs[-1]
    taken: dict = {pair: [] for pair in pairs}
    for round_ in range(9):
        for pair in pairs:
            found = copies.seconds_between(
                *(buffers[device] for device in pair), 1 + repeats // 8, slow * (pair == faulty)
            )
            taken[pair] += found if round_ else []  # the first round warms up
    for pair in pairs:
        target = buffers[pair[1]]
        target.received.zero_()
        copies.seconds_between(buffers[pair[0]], target, 1)
        if plan.injected("corrupt-link") and pair == faulty:
            target.received[7] ^= 1
        if wrong := target.wrong_words():
            words = f"{_name(pair)} delivered {wrong} wrong words of {target.received.numel()}"
            evidence.fail("wrong-words", words, _name(pair))
    moved = size / 1e9
    rates = {pair: moved / statistics.median(found) for pair, found in taken.items()}
    evidence.measurements += [
        Measurement("link_peer", rates[pair], "GB/s", _name(pair)) for pair in pairs
    ]
    evidence.facts["direct_access"] = {_name(pair): copies.direct(*pair) for pair in pairs}
    typical, tolerance = peer_comparison.typical_time_and_tolerance(plan.device)
    if plan.device == "cuda" and not nvlink:
        tolerance = peer_comparison.PCIE_PEERS
    compared = {_name(pair): moved / typical(found) for pair, found in taken.items()}
    peer_comparison.compare(evidence, "link_peer", "GB/s", compared, tolerance)


def _name(pair: tuple) -> str:
    return f"{pair[0]}→{pair[1]}"
