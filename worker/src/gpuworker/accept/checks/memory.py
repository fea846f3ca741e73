"""The memory of every GPU reaches the bandwidth of its model and retains all data.

copy is a = b, triad is a = b + s·c (STREAM's definition); GB/s = bytes read and written / median
time / 1e9. All GPUs run at the same time. The pattern test fills most of the free memory with the
address of each word, its inverse, and random words. It reads back after all words are written, and
names the words that differ.
"""

from __future__ import annotations

import math
import os
import statistics
import time

from gpuworker.judgement import peer_comparison
from gpuworker.judgement.check_spec import Measure, Plan, Spec
from gpuworker.judgement.report import FAIL, INCOMPLETE, WARN, Evidence
from gpuworker.runtime import gpu_specs

SPEC = Spec(
    tag="MEMORY",
    seconds={"quick": 6, "full": 60, "burn-in": 600, "prolog": 4},
    measures={
        "memory_copy": Measure(
            "GB/s", "a copy within the memory, bytes read and written", limit="memory_copy"
        ),
        "memory_triad": Measure(
            "GB/s", "a = b + s·c, bytes read and written", limit="memory_triad"
        ),
        "memory_tested": Measure(
            "GiB", "memory that retained all patterns", noise=math.inf, meaningful=(1, 1e3)
        ),  # not compared: judged by the memory of the GPU, see LEAST_TESTED
    },
    prolog=("memory_copy",),
    faults={
        "slow-memory": "slow",
        "flipped-bit-memory": "wrong-memory",
    },
)
LEAST_TESTED = 0.85  # of a GPU's memory
LEAST_OF_MODEL = 0.88  # ECC of older GPUs takes a part of the memory (T4: 14.6 of 16 GB)
LEAST_ACCEPTED = 0.5  # of it; otherwise the memory is not tested
ARRAY_BYTES = {"cuda": 1 << 30, "cpu": 16 << 20}
REHEARSAL_BYTES = 64 << 20  # for the pattern test
REHEARSAL_S = 1.0


def measure(plan: Plan) -> Evidence:
    from gpuworker.accept.kernels import fingerprint, memory_pattern, timing

    evidence = Evidence()
    devices = timing.test_devices(plan)
    if not devices:
        return evidence
    start = time.monotonic()
    budget_s = plan.budget_s(REHEARSAL_S)
    evidence.facts["memory_gib"] = {str(device): _total(device) / 2**30 for device in devices}
    evidence.facts["models"] = {str(device): fingerprint.model(device) for device in devices}
    asked = SPEC.measures_at(plan.level)
    names = [name for name in ("memory_copy", "memory_triad") if name in asked]
    for name in names:
        _bandwidth(name, devices, budget_s / 2 / len(names), plan, evidence)
    if "memory_tested" not in asked:
        return evidence
    flip = devices[-1] if plan.injected("flipped-bit-memory") else None

    def test(device) -> tuple[int, list[str]]:
        return memory_pattern.test(device, _bytes(device), device == flip)

    found: dict = {}
    while not found or (time.monotonic() - start < 0.8 * budget_s and not evidence.has(FAIL)):
        found = timing.run_on_all(devices, test)
        for device, (_, errors) in found.items():
            for words in errors:
                evidence.fail("wrong-memory", f"{device}: {words}", device)
    for device, (size, _) in found.items():
        if label := peer_comparison.report_name(str(device)):
            evidence.add_number("memory_tested", size / 2**30, "GiB", label)
    return evidence


def problems(evidence: Evidence, plan: Plan) -> None:
    peer_comparison.problems(evidence, plan, "memory_copy", "memory_triad", stalls=True)
    _sizes(evidence)
    for number in evidence.measurements if plan.device == "cuda" else ():
        if number.name == "memory_tested":
            total = evidence.facts["memory_gib"][number.device]
            if number.value > total:
                words = f"{number.device}: {number.value:.1f} of {total:.1f} GiB were tested"
                evidence.incomplete("contradiction", words, number.device)
            elif number.value < LEAST_TESTED * total:
                words = f"only {number.value:.1f} of {total:.1f} GiB were free to be tested"
                verdict = INCOMPLETE if number.value < LEAST_ACCEPTED * total else WARN
                evidence.add(verdict, "half-tested", f"{number.device}: {words}", number.device)


def _sizes(evidence: Evidence) -> None:
    """Add GPUs with less memory than their model has, or than the others of their model on the
    node.
    """
    total, models = evidence.facts["memory_gib"], evidence.facts["models"]
    for device, gib in total.items():
        alike = [total[other] for other in total if models[other] == models[device]]
        listed = (
            gpu_specs.figures("memory_gb", models[device]).get("specification", 0) * 1e9 / 2**30
        )
        usual = max(statistics.median(alike), listed)
        if gib < LEAST_OF_MODEL * usual:
            words = f"it has {gib:.1f} GiB of memory, {usual:.1f} are usual for {models[device]}"
            evidence.fail("less-memory", f"{device}: {words}", device)


def _bandwidth(name: str, devices: list, budget_s: float, plan: Plan, evidence: Evidence) -> None:
    import torch

    from gpuworker.accept.kernels import timing

    size = ARRAY_BYTES[plan.device]
    arrays = timing.run_on_all(
        devices,
        lambda device: [torch.ones(size // 4, device=device) * factor for factor in (0, 1, 2)],
    )
    streams = 2 if name == "memory_copy" else 3
    slow = devices[-1] if plan.injected("slow-memory") else None

    def run(device) -> None:
        a, b, c = arrays[device]
        if name == "memory_copy":
            a.copy_(b)
        else:
            torch.add(b, c, alpha=3.0, out=a)
        if device == slow:
            timing.hold_stream(device)

    def batch(device) -> list[float]:
        return timing.seconds(lambda: run(device), device, 20 if plan.device == "cuda" else 2)

    taken = timing.batches(devices, batch, budget_s)
    for device in devices:
        a, b, c = arrays[device]
        if not torch.equal(a, b if name == "memory_copy" else b + 3 * c):
            evidence.fail("wrong-memory", f"{device}: {name} returned wrong values", device)
    moved = streams * size / 1e9
    peer_comparison.record(evidence, name, "GB/s", moved, taken, plan.device, True)


def _bytes(device) -> int:
    """Memory to fill: the free memory without the working space of a chunk."""
    import torch

    from gpuworker.accept.kernels import memory_pattern

    if device.type == "cpu":
        return REHEARSAL_BYTES
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return max(int(0.97 * free) - 3 * memory_pattern.CHUNK_BYTES, memory_pattern.CHUNK_BYTES)


def _total(device) -> int:
    import torch

    if device.type == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return torch.cuda.mem_get_info(device)[1]
