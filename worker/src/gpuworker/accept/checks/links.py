"""Every link of a GPU, to the host and to each other GPU, reaches its bandwidth and delivers data unchanged.

Host links: copies from and to pinned memory near the GPU, each direction alone and both together. One GPU is judged
at a time, since GPUs may share an uplink (their joint rate is in the facts). Peer links: each GPU to each other one,
alone, then all GPUs in disjoint pairs and both directions. GB/s = bytes / median time / 1e9. The limit of a host link
comes from its PCIe generation and width, that of a peer link from the model's NVLink rate, if the driver lists
NVLinks.

A rehearsal copies between buffers of the CPU. Not yet run with two GPUs.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import time

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
REPEATS = {"quick": 8, "full": 40, "burn-in": 100}


def measure(plan: Plan) -> Evidence:
    from gpuworker.accept import link_problems
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
        evidence.facts["links"][gpu.device]["errors"] = {
            field: [getattr(each, field) for each in (gpu, later)] for field in link_problems.ERRORS
        }
    return evidence


def problems(evidence: Evidence, plan: Plan) -> None:
    from gpuworker.accept import link_problems

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
        for device in devices:
            if label := timing.report_name(device):
                rate = timing.statistics_of(taken[device], moved)["median"]
                evidence.measurements.append(Measurement(name, rate, "GB/s", label))
                evidence.samples[f"{name} {label}"] = timing.subsample(taken[device])
        evidence.facts[name] = {
            "bytes": size,
            "alone_gbps": {
                str(device): timing.statistics_of(found, moved) for device, found in taken.items()
            },
            "together_gbps": {
                str(d): timing.statistics_of(found, moved)["median"] for d, found in shared.items()
            },
        }
        rates = {str(device): moved / typical(found) for device, found in taken.items()}
        peer_comparison.compare(evidence, name, "GB/s", rates, tolerance)
    for device in devices:
        if wrong := hosts[device].wrong_words():
            words = f"{device}: {wrong} words differ after a copy to the GPU and back"
            evidence.fail("wrong-words", words, device)


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
    from gpuworker.accept import link_problems
    from gpuworker.accept.limits import Limits

    evidence.facts["links"] = {
        gpu.device: {
            "name": gpu.name,
            "pcie_gen_under_load": generations.get(gpu.device),
            "pcie_gen_max": gpu.pcie_gen_max,
            "pcie_width_under_load": (widths or {}).get(gpu.device),
            "pcie_width": gpu.pcie_width,
            "pcie_width_max": gpu.pcie_width_max,
            "nvlinks_up": gpu.nvlinks_up,
            "nvlinks_down": gpu.nvlinks_down,
        }
        for gpu in gpus
    }
    widths = [
        (
            link_problems.GBPS_PER_LANE[gpu.pcie_gen_max] * gpu.pcie_width_max,
            f"PCIe generation {gpu.pcie_gen_max} ×{gpu.pcie_width_max}",
        )
        for gpu in gpus
        if gpu.pcie_gen_max in link_problems.GBPS_PER_LANE and gpu.pcie_width_max
    ]
    if widths and plan.device == "cuda":
        rate, origin = max(widths)
        evidence.ceilings |= {
            "link_h2d": (rate, origin),
            "link_d2h": (rate, origin),
            "link_both": (2 * rate, origin),
        }
    nvlink = Limits(tuple(gpu.name for gpu in gpus)).figures("nvlink_oneway")
    if nvlink and any(gpu.nvlinks_up for gpu in gpus):
        origin = f"one-way NVLink rate of {nvlink['model']}: {nvlink['source']}"
        evidence.ceilings["link_peer"] = nvlink["specification"], origin


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
            words = f"{_name(pair)} delivered {wrong} wrong words of {target.received.numel()}"
            evidence.fail("wrong-words", words, _name(pair))
    moved = size / 1e9
    rates = {pair: timing.statistics_of(found, moved)["median"] for pair, found in taken.items()}
    evidence.measurements += [
        Measurement("link_peer", rates[pair], "GB/s", _name(pair)) for pair in pairs
    ]
    evidence.facts["peer_matrix"] = {
        "devices": [str(device) for device in devices],
        "gbps": [[rates.get((a, b)) for b in devices] for a in devices],
        "direct_access": [[copies.direct(a, b) for b in devices] for a in devices],
    }
    together = {}
    for round_pairs in peer_comparison.rounds_of_pairs(len(devices)):
        for (a, b), found in copies.exchange(
            [(buffers[devices[a]], buffers[devices[b]]) for a, b in round_pairs]
        ).items():
            together[f"{a}↔{b}"] = 2 * moved / found
    evidence.facts["peer_pairs_together_gbps"] = together
    typical, tolerance = peer_comparison.typical_time_and_tolerance(plan.device)
    if plan.device == "cuda" and not nvlink:
        tolerance = peer_comparison.PCIE_PEERS
    compared = {_name(pair): moved / typical(found) for pair, found in taken.items()}
    peer_comparison.compare(evidence, "link_peer", "GB/s", compared, tolerance)


def _name(pair: tuple) -> str:
    return f"{pair[0]}→{pair[1]}"
