"""Findings about the fabric that a GPU belongs to, and about the programs that share it."""

from __future__ import annotations

from collections.abc import Iterator

from gpuworker.judgement.report import FAIL, WARN

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


def fabric(gpu) -> Iterator[tuple[str, str, str]]:
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
        words = f"its registration with the fabric ended with error {gpu.fabric_status}: see the fabric manager"
        yield FAIL, "fabric-manager", words
    for shift, words in UNHEALTHY.items():
        if mask >> shift & 3 == TRUE:
            yield FAIL, "fabric-degraded", words
    if problem := CONFIGURATION.get(mask >> 8 & 15):
        yield FAIL, "fabric-manager", f"the fabric manager found {problem}"
    for shift, words in RECOVERING.items():
        if mask >> shift & 3 == TRUE:
            yield WARN, "fabric-degraded", words


def users(gpu) -> Iterator[tuple[str, str, str]]:
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
