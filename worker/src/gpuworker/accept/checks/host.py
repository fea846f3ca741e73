"""The cores and the memory of the host are as fast as those beside them and of other nodes.

For each NUMA node in turn, one thread per core copies within memory of that node, and then computes
SHA-256. A node with one NUMA node is compared in two halves. Other pods may use the same cores and
memory, so a slow part is a WARN, and the time in which another program had a core does not count.
The fleet compares the numbers of all nodes. Every NUMA node is measured with the same number of
cores: a pod that may use few cores of one, or none of its memory, measures a lower bandwidth.

A missing memory module, a wrong BIOS setting, a hot socket or a core at its lowest clock delays
data loaders and the launch of kernels, and no check of a GPU shows it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gpuworker.accept import host_info
from gpuworker.judgement import peer_comparison
from gpuworker.judgement.check_spec import Measure, Plan, Spec
from gpuworker.judgement.report import Evidence
from gpuworker.runtime import machine

SPEC = Spec(
    tag="MEMORY",
    seconds={"quick": 3, "full": 10, "burn-in": 60},
    measures={
        "host_memory": Measure(
            "GB/s",
            "copies by the cores of a NUMA node within its memory, bytes read and written",
            each="node",
            meaningful=(0.1, 4e3),  # a socket with HBM has 1.6 TB/s
        ),
        "host_compute": Measure(
            "GB/s", "SHA-256 by one of these cores, the median", each="node", meaningful=(0.01, 100)
        ),
    },
    faults={
        "slow-host-memory": "slow",
        "slow-cpu": "slow",
    },
)
MOST_CORES = {"cuda": 32, "cpu": 2}  # of a NUMA node: enough to load its memory, and 1 GiB in all
# of each core's two buffers, together larger than any cache
COPY_BYTES = {"cuda": 16 << 20, "cpu": 4 << 20}
HASH_BYTES = 1 << 20
ROUNDS = 5
REHEARSAL_S = 0.4
START_S = 60  # until all threads have their memory


def measure(plan: Plan) -> Evidence:
    allowed = os.sched_getaffinity(0)
    nodes = halves(host_info.cores_by_numa_node(allowed))
    # more threads than its quota would be stopped in turn
    count = min(machine.cpus(), MOST_CORES[plan.device], *map(len, nodes.values()))
    groups = {name: spread(cpus, count) for name, cpus in nodes.items()}
    typical = peer_comparison.typical_time(plan.device)
    budget_s = plan.budget_s(REHEARSAL_S) / len(groups) / 2
    cores = {name: len(cpus) for name, cpus in nodes.items()}
    evidence = Evidence(facts={"cores": cores, "measured_on": groups})
    size, by_core, by_node = COPY_BYTES[plan.device], {}, {}
    for name, cpus in groups.items():
        last = name == list(groups)[-1]
        slow = set(cpus) if last and plan.injected("slow-host-memory") else set()
        copies = times(cpus, lambda: _copy(size), budget_s, slow)
        by_node[name] = sum(2 * size / typical(found) / 1e9 for found in copies.values())
        evidence.add_number("host_memory", by_node[name], "GB/s", name)
        slow = {cpus[-1]} if last and plan.injected("slow-cpu") else set()
        hashes = times(cpus, _hash, budget_s, slow)
        rates = {
            f"{name} CPU {cpu}": HASH_BYTES / typical(found) / 1e9 for cpu, found in hashes.items()
        }
        by_core |= rates
        evidence.add_number("host_compute", statistics.median(rates.values()), "GB/s", name)
    peer_comparison.compare(evidence, "host_memory", by_node)
    peer_comparison.compare(evidence, "host_compute", by_core)
    return evidence


def problems(evidence: Evidence, plan: Plan) -> None:
    peer_comparison.problems(evidence, plan)


def halves(nodes: dict[int, list[int]]) -> dict[str, list[int]]:
    """Groups of cores that can be compared: the NUMA nodes, or two halves of the only one."""
    if len(nodes) > 1:
        return {f"numa{node}": cpus for node, cpus in nodes.items()}
    ((node, cpus),) = nodes.items()
    return {f"numa{node}/{half}": cpus[half::2][: len(cpus) // 2] or cpus for half in (0, 1)}


def spread(cpus: list[int], count: int) -> list[int]:
    """So many of the CPUs, evenly spread."""
    return [cpus[index * len(cpus) // count] for index in range(count)]


def times(
    cpus: list[int], make: Callable[[], Callable[[], object]], budget_s: float, slow: set[int]
) -> dict[int, list[float]]:
    """Seconds of each call on each CPU while all of them work. `slow`: CPUs that an injected
    fault slows down.
    """
    import torch

    from gpuworker.accept.kernels import timing

    device, start = torch.device("cpu"), threading.Barrier(len(cpus))

    def run(cpu: int) -> list[float]:
        with host_info.bound_to({cpu}):
            # on its CPU: memory comes from the NUMA node of the thread that uses it first
            work = make()

            def action() -> None:
                work()
                if cpu in slow:
                    timing.hold_stream(device)

            action()
            start.wait(START_S)
            found: list[float] = []
            end = time.monotonic() + budget_s
            while len(found) < ROUNDS or time.monotonic() < end:
                found += timing.seconds(action, device, 1)
            return found

    with ThreadPoolExecutor(len(cpus)) as pool:
        return dict(zip(cpus, pool.map(run, cpus), strict=True))


def _copy(size: int) -> Callable[[], object]:
    source, target = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
    ctypes.memset(source, 1, size)  # memory that was never written is one page of zeros
    return lambda: ctypes.memmove(target, source, size)


def _hash() -> Callable[[], object]:
    block = bytes(HASH_BYTES)
    return lambda: hashlib.sha256(block).digest()
