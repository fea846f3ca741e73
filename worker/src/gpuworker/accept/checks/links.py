"""Every link of a GPU, to the host and to each other GPU, reaches its bandwidth and delivers data unchanged.

Host links: copies from and to pinned memory near the GPU, each direction alone and both together. One GPU is judged
at a time, since GPUs may share an uplink (their joint rate is in the facts). Peer links: each GPU to each other one,
alone, then all GPUs in disjoint pairs and both directions. GB/s = bytes / median time / 1e9. The limit of a host link
comes from its PCIe generation and width, that of a peer link from the model's NVLink rate, if the driver lists
NVLinks.

A rehearsal copies between buffers of the CPU. Not yet run on a GPU.
"""

from __future__ import annotations

import dataclasses
import os
import time

from gpuworker.accept.check_spec import DEVICES, Evidence, Measure, Plan, Spec
from gpuworker.accept.report import Measurement

SPEC = Spec(
    tag="LINKS",
    seconds={"quick": 6, "full": 30, "burn-in": 60},
    process=DEVICES,
    measures={
        "link_h2d": Measure("GB/s", "from pinned host memory to the GPU", limit="host_link"),
        "link_d2h": Measure("GB/s", "from the GPU to pinned host memory", limit="host_link"),
        "link_both": Measure("GB/s", "sum of both directions at the same time"),
        "link_peer": Measure("GB/s", "from one GPU to another", limit="peer_link", each="pair"),
    },
    faults={
        "slow-link": r"(cpu|cuda):\d+→(cpu|cuda):\d+ is slow: link_peer",
        "slow-host-link": r"(cpu|cuda):\d+ is slow: link_h2d",
        "corrupt-link": r"(cpu|cuda):\d+→(cpu|cuda):\d+ delivered \d+ wrong words",
        "narrow-link": r"(cpu|cuda):\d+: PCIe ran at generation 1 under load, it supports 5",
        "narrow-lanes": r"(cpu|cuda):\d+: PCIe ran ×8 wide under load, GPU and slot can do ×16",
        "link-errors": r"(cpu|cuda):\d+: 5 NVLink errors during this check",
        "missing-nvlink": r"(cpu|cuda):\d+: 17 of 18 NVLinks are up",
    },
)
GBPS_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}  # PCIe, one way, after line coding
BYTES = {"cuda": 256 << 20, "cpu": 8 << 20}
SUSTAIN_S = 0.5  # all GPUs together, long enough to read the links' state from the driver
REPEATS = {"quick": 8, "full": 40, "burn-in": 100}


def measure(plan: Plan) -> Evidence:
    from gpuworker.accept.kernels import timing
    from gpuworker.runtime import gpu_inventory, gpu_telemetry

    evidence = Evidence()
    devices = timing.test_devices(plan, rehearsal=3)
    if not devices:
        return evidence
    if plan.device == "cuda":
        gpus = gpu_inventory.with_torch_names(gpu_inventory.inventory()[1], timing.uuids(plan))
    else:
        gpus = [gpu_inventory.Gpu(str(device)) for device in devices]
    if gpus and plan.injected("missing-nvlink"):
        gpus[-1] = dataclasses.replace(gpus[-1], nvlinks_up=17, nvlinks_down=1)
    with gpu_telemetry.Sampler(timing.uuids(plan)) as sampler:
        _host(devices, _near(gpus, evidence), plan, evidence)
    summary = gpu_telemetry.summary(sampler.readings)
    generations = {device: facts.get("pcie_gen_max") for device, facts in summary.items()}
    widths = {device: facts.get("pcie_width_max") for device, facts in summary.items()}
    if gpus and plan.injected("narrow-lanes"):
        gpus[-1] = dataclasses.replace(gpus[-1], pcie_width_max=16)
        widths[gpus[-1].device] = 8
    if gpus and plan.injected("narrow-link"):
        gpus[-1] = dataclasses.replace(gpus[-1], pcie_gen_max=5, pcie_width_max=16)
        generations[gpus[-1].device] = 1
    _driver_view(gpus, generations, plan, evidence, widths)
    if len(devices) > 1:
        _peers(devices, any(gpu.nvlinks_up for gpu in gpus), plan, evidence)
    else:
        evidence.inapplicable["link_peer"] = "one GPU has no peer"
    after = {gpu.uuid: gpu for gpu in gpu_inventory.inventory()[1]} if plan.device == "cuda" else {}
    for gpu in gpus:
        later = after.get(gpu.uuid, gpu)
        if plan.injected("link-errors") and gpu is gpus[-1]:
            gpu, later = (dataclasses.replace(gpu, nvlink_errors=count) for count in (2, 7))
        evidence.warnings += _new_errors(gpu, later)
    return evidence


def _near(gpus: list, evidence: Evidence) -> dict[str, set[int]]:
    """CPUs near each GPU. A copy from the memory of another socket is slower, which is not a fault of the link."""
    from gpuworker.accept import host_info

    near = {gpu.device: host_info.local_cpus(gpu.bus_id) for gpu in gpus if gpu.bus_id}
    for device, cpus in near.items():
        if cpus and not cpus & os.sched_getaffinity(0):
            words = "this pod may not use any CPU of its NUMA node, so its host link is measured from another one"
            evidence.warnings.append(f"{device}: {words}")
    return near


def _host(devices: list, near: dict[str, set[int]], plan: Plan, evidence: Evidence) -> None:
    from gpuworker.accept import host_info, peer_comparison
    from gpuworker.accept.kernels import copies, timing

    size, repeats = BYTES[plan.device], REPEATS[plan.level]

    def host_link(device) -> copies.HostLink:
        with host_info.bound_to(near.get(str(device), set())):
            return copies.HostLink(device, size)

    hosts = timing.run_on_all(devices, host_link)
    typical, tolerance = peer_comparison.typical_time_and_tolerance(plan.device)
    for name in ("link_h2d", "link_d2h", "link_both"):
        moved = size / 1e9 * (2 if name == "link_both" else 1)
        taken: dict = {device: [] for device in devices}

        def batch(device, name: str = name) -> list[float]:
            slow = plan.injected("slow-host-link") and name == "link_h2d" and device == devices[-1]
            with host_info.bound_to(near.get(str(device), set())):
                return hosts[device].seconds(name, 1 + repeats // 8, timing.HOLD_S if slow else 0.0)

        timing.run_on_all(devices, batch)  # warm-up
        for _ in range(8):  # in turns, so that a disturbance of the host affects all devices
            for device in devices:
                taken[device] += timing.run_on_all([device], batch)[device]
        shared: dict = {device: [] for device in devices}
        end = time.monotonic() + (SUSTAIN_S if plan.device == "cuda" else 0)
        while not shared[devices[0]] or time.monotonic() < end:
            for device, found in timing.run_on_all(devices, batch).items():
                shared[device] += found
        for device in devices:
            if label := timing.report_name(device):
                rate = timing.statistics_of(taken[device], moved)["median"]
                evidence.measurements.append(Measurement(name, rate, "GB/s", label))
                evidence.samples[f"{name} {label}"] = timing.subsample(taken[device])
        evidence.facts[name] = {
            "bytes": size,
            "alone_gbps": {str(device): timing.statistics_of(found, moved) for device, found in taken.items()},
            "together_gbps": {str(d): timing.statistics_of(found, moved)["median"] for d, found in shared.items()},
        }
        rates = {str(device): moved / typical(found) for device, found in taken.items()}
        peer_comparison.compare(evidence, name, "GB/s", rates, tolerance)
    for device in devices:
        if wrong := hosts[device].wrong_words():
            evidence.failures.append(f"{device}: {wrong} words differ after a copy to the GPU and back")


def _driver_view(
    gpus: list,
    generations: dict[str, int | None],
    plan: Plan,
    evidence: Evidence,
    widths: dict[str, int | None] | None = None,
) -> None:
    """Links as reported by the driver, and the ceilings derived from them.

    PCIe generation and width are read under load: a GPU at rest may lower them to save power.
    """
    from gpuworker.accept.limits import Limits

    evidence.facts["links"] = {
        gpu.device: {
            "pcie_gen_under_load": generations.get(gpu.device),
            "pcie_gen_max": gpu.pcie_gen_max,
            "pcie_width_under_load": (widths or {}).get(gpu.device),
            "pcie_width": gpu.pcie_width,
            "nvlinks_up": gpu.nvlinks_up,
            "nvlinks_down": gpu.nvlinks_down,
        }
        for gpu in gpus
    }
    for gpu in gpus:
        generation = generations.get(gpu.device)
        if generation and gpu.pcie_gen_max and generation < gpu.pcie_gen_max:
            words = f"PCIe ran at generation {generation} under load, it supports {gpu.pcie_gen_max}"
            evidence.warnings.append(f"{gpu.device}: {words}")
        width = (widths or {}).get(gpu.device)
        if width and gpu.pcie_width_max and width < gpu.pcie_width_max:
            words = f"PCIe ran ×{width} wide under load, GPU and slot can do ×{gpu.pcie_width_max}"
            evidence.failures.append(f"{gpu.device}: {words}")
        evidence.warnings += _claims_less(gpu)
    failures, warnings = _nvlink_faults(gpus)
    evidence.failures += failures
    evidence.warnings += warnings
    widths = [
        (
            GBPS_PER_LANE[gpu.pcie_gen_max] * gpu.pcie_width_max,
            f"PCIe generation {gpu.pcie_gen_max} ×{gpu.pcie_width_max}",
        )
        for gpu in gpus
        if gpu.pcie_gen_max in GBPS_PER_LANE and gpu.pcie_width_max
    ]
    if widths and plan.device == "cuda":
        evidence.ceilings["link_h2d"] = evidence.ceilings["link_d2h"] = max(widths)
    nvlink = Limits(tuple(gpu.name for gpu in gpus)).figures("nvlink_oneway")
    up = [gpu.nvlinks_up for gpu in gpus]
    if nvlink and any(up):
        origin = f"one-way NVLink rate of {nvlink['model']}: {nvlink['source']}"
        evidence.ceilings["link_peer"] = nvlink["specification"], origin
    elif nvlink and len(gpus) > 1 and None not in up:
        evidence.warnings.append(f"no NVLink of {nvlink['model']} GPUs is up: is the fabric manager running?")


def _new_errors(before, after) -> list[str]:
    """Warnings for error counters that grew during this check: links repair such errors, which costs time."""
    found = []
    for field, words in (("nvlink_errors", "NVLink errors"), ("pcie_replays", "PCIe replays")):
        first, last = getattr(before, field), getattr(after, field)
        if first is not None and last is not None and last > first:
            found.append(f"{before.device}: {last - first} {words} during this check, {last} in all")
    return found


def _claims_less(gpu) -> list[str]:
    """A warning if GPU and slot can do less than the model: the limit is a share of what they can do."""
    from gpuworker.runtime import gpu_specs

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
    from gpuworker.runtime import gpu_specs

    most = max((gpu.nvlinks_up or 0 for gpu in gpus), default=0)
    failures, warnings = [], []
    for gpu in gpus if most else ():
        up, down = gpu.nvlinks_up or 0, gpu.nvlinks_down or 0
        has = gpu_specs.figures("nvlinks", gpu.name).get("specification")
        if has and up < has and up + down >= has:
            failures.append(f"{gpu.device}: {up} of {has} NVLinks are up")
        elif up < most and gpu.nvlinks_up is not None:
            failures.append(f"{gpu.device}: {up} NVLinks, other GPUs have {most}")
        elif has and up < has:
            warnings.append(f"{gpu.device}: NVML reports {up} of {has} NVLinks: is nvidia-ml-py too old?")
        elif down and not has:
            words = "whether this board has the others is not known"
            warnings.append(f"{gpu.device}: {up} of {up + down} NVLinks are up, {words}")
    return failures, warnings


def _peers(devices: list, nvlink: bool, plan: Plan, evidence: Evidence) -> None:
    """Measure all pairs, one direction at a time, then disjoint pairs together."""
    from gpuworker.accept import peer_comparison
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
            evidence.failures.append(f"{_name(pair)} delivered {wrong} wrong words of {target.received.numel()}")
    moved = size / 1e9
    rates = {pair: timing.statistics_of(found, moved)["median"] for pair, found in taken.items()}
    evidence.measurements += [Measurement("link_peer", rates[pair], "GB/s", _name(pair)) for pair in pairs]
    evidence.facts["peer_matrix"] = {
        "devices": [str(device) for device in devices],
        "gbps": [[rates.get((a, b)) for b in devices] for a in devices],
        "direct_access": [[copies.direct(a, b) for b in devices] for a in devices],
    }
    together = {}
    for round_pairs in rounds(len(devices)):
        for (a, b), found in copies.exchange(
            [(buffers[devices[a]], buffers[devices[b]]) for a, b in round_pairs]
        ).items():
            together[f"{a}↔{b}"] = 2 * moved / found
    evidence.facts["peer_pairs_together_gbps"] = together
    typical, tolerance = peer_comparison.typical_time_and_tolerance(plan.device)
    if plan.device == "cuda" and not nvlink:  # PCIe paths differ: one switch, one socket, two sockets
        tolerance = peer_comparison.Tolerance(0.40, None)
    compared = {_name(pair): moved / typical(found) for pair, found in taken.items()}
    peer_comparison.compare(evidence, "link_peer", "GB/s", compared, tolerance)


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """All pairs of 0 … count-1 in rounds of disjoint pairs (the circle method of tournaments)."""
    ring = list(range(count)) + [-1] * (count % 2)  # -1 pauses
    found = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        found.append([(min(pair), max(pair)) for pair in pairs if -1 not in pair])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found


def _name(pair: tuple) -> str:
    return f"{pair[0]}→{pair[1]}"
