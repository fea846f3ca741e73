"""Every link of a GPU, to the host and to each other GPU, reaches its bandwidth and delivers data unchanged.

Host links: copies from and to pinned memory near the GPU, each direction alone and both together. One GPU is judged
at a time, since GPUs may share an uplink (their joint rate is in the facts). Peer links: each GPU to each other one,
alone. GB/s = bytes / median time / 1e9. The limit of a host link
comes from its PCIe generation and width, that of a peer link from the model's NVLink rate, if the driver lists
NVLinks.

A rehearsal copies between buffers of the CPU. Not yet run with two GPUs.
"""

from __future__ import annotations

import os
import statistics
import time

from gpuworker.accept import link_problems, peer_comparison
from gpuworker.accept.check_spec import DEVICES, Measure, Plan, Spec
from gpuworker.judgement.report import Evidence, Measurement

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
    from gpuworker.runtime import gpu_inventory, gpu_telemetry

    evidence = Evidence()
    devices = timing.test_devices(plan, rehearsal=3)
    if not devices:
        return evidence
    if plan.device == "cuda":
        gpus = gpu_inventory.with_torch_names(gpu_inventory.inventory()[1], timing.uuids(plan))
    else:
        gpus = [gpu_inventory.Gpu(str(device)) for device in devices]
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
    link_problems.add_problems(evidence, plan)


def _near(gpus: list, evidence: Evidence) -> dict[str, set[int]]:
    """CPUs near each GPU. A copy from the memory of another socket is slower, which is not a
    fault of the link.
    """
    from gpuworker.accept import host_info

    near = {gpu.device: host_info.local_cpus(gpu.bus_id) for gpu in gpus if gpu.bus_id}
    for device, cpus in near.items():
        if cpus and not cpus & os.sched_getaffinity(0):
            words = "this pod may not use any CPU of its NUMA node, so its host link is measured from another one"
            evidence.warn("far-cpus", f"{device}: {words}", device)
    return near


def _host(devices: list, near: dict[str, set[int]], plan: Plan, evidence: Evidence) -> None:
    from gpuworker.accept import host_info
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
        links[gpu.device] = {field: getattr(gpu, field) for field in link_problems.FIELDS} | {
            "pcie_gen_under_load": load.get("pcie_gen_max"),
            "pcie_width_under_load": load.get("pcie_width_max"),
            "errors": {
                field: [getattr(each, field) for each in (gpu, later)]
                for field in link_problems.ERRORS
            },
        }
    return links


def ceilings(links: dict[str, dict], plan: Plan) -> dict[str, tuple[float, str]]:
    """What the links can do, by what the driver reports of them."""
    from gpuworker.accept.limits import Limits

    found, per_lane = {}, link_problems.GBPS_PER_LANE
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
