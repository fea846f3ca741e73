"""Causes of a rank's end in what it has left behind: its exceptions, torch's watchdogs, full disks.

Nothing here asks the rank; `errors` are what its hook has written (python_hook.describe).
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Iterable

from gpuworker.launch import stacks
from gpuworker.launch.failure_causes import BY_KEY
from gpuworker.runtime import processes

OUT_OF_MEMORY = ("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")
NO_MEMORY = re.compile(r"(CUDA|HIP) out of memory|Cuda failure (2 )?'out of memory'")
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
TIMED_OUT = re.compile(r"[Tt]imed? ?out|wait timeout after \d+|monitoredBarrier|watchdog got stuck")
# Gloo's and NCCL's own words for the end of a peer.
LOST = re.compile(
    r"Connection (was )?(likely )?(closed|reset) by (remote )?peer|Broken pipe"
    r"|[Cc]onnection refused"
    r"|ncclRemoteError|remote process (exited|has)|[Ss]ocket closed|[Ff]ailed to recv, got 0 bytes"
    r"|Read error|Write error|NCCL communicator was aborted|ncclSystemError|unhandled system error"
    r"|Failed to connect to|failed to connect to|timed out connecting|connectFullMesh"
)
BROKEN_GPU = re.compile(
    r"uncorrectable ECC error|hardware stack error|unspecified launch failure|GPU is lost"
    r"|fallen off the bus|GPU requires reset|uncorrectable NVLink error"
)
# RuntimeErrors that torch's C++ raises name the file or the component at their beginning.
FROM_GLOO = re.compile(
    r"^\[?\S*(gloo/|ProcessGroup)|^(Gloo|NCCL error|Application timeout|Timed out waiting)"
    r"|^\[Rank \d+\]: .*failed to pass monitoredBarrier"
)
FROM_CUDA = re.compile(r"^(CUDA error|HIP error|CUDA driver error)")
# As ProcessGroupNCCL's watchdog logs it before it ends the process.
WATCHDOG = "Watchdog caught collective operation timeout"
WRITING = re.compile(
    r"unexpected pos \d+ vs|PytorchStreamWriter|inline_container|os error 28"
    r"|requested and \d+ written"
    r"|No space left|enforce fail at .*write"
)
WORKER = re.compile(r"^DataLoader worker .* (killed by signal: (\w+)|exited unexpectedly)")
SHARED_MEMORY = re.compile(
    r"DataLoader worker .*[Bb]us error|unable to (mmap|allocate shared memory)"
    r"|unable to write to file </torch_"
)
# Lines of torch's and NCCL's own threads; an attempt that they make again ends nothing.
FROM_WATCHDOG = re.compile(
    r"ProcessGroup\w+\.cpp|TCPStore\.cpp|NCCL WARN|NCCL error|ncclRemoteError"
)
ATTEMPT = re.compile("failed to connect|Call to connect returned|retry")


def of_exception(errors: list[dict], addresses: Iterable[str], full: list[str], oom: bool) -> str:
    """Cause of an exception, by its class, its errno, and facts of this node.

    `errors`: python_hook.describe. `addresses`: what the run's own connections lead to. `full`:
    volumes without free space. `oom`: the kernel killed a process of this container for memory.
    The text counts only of classes that torch raises for its communication and its GPU.
    """
    found = "program-failed"
    for error in errors:
        cause = _of_one(error, addresses, full, oom)
        # What was raised `from` another one has its cause. What was raised in a handler or in
        # `finally` has it only if it says nothing itself: the victim of a lost peer, no new error.
        same = error["how"] in ("from", "first of") or found == "program-failed"
        if cause != "program-failed" if same else BY_KEY[found].secondary:
            found = cause
    return found


def _of_one(error: dict, addresses: Iterable[str], full: list[str], oom: bool) -> str:
    kind, text = error["kinds"][0], error["text"]
    system, runtime = "builtins.OSError" in error["kinds"], kind == "builtins.RuntimeError"
    if kind in OUT_OF_MEMORY or (runtime and NO_MEMORY.match(text)):
        return "gpu-out-of-memory"
    from_library = kind.startswith(("torch.", "safetensors")) or runtime or system
    if from_library and (error["errno"] in DISK_FULL or WRITING.search(text)):
        in_memory = "/dev/shm" in full and (full == ["/dev/shm"] or "/dev/shm" in error["file"])
        if in_memory:
            return "shared-memory-full"
        if full or error["errno"] == errno.EDQUOT or kind.startswith("safetensors"):
            return "disk-full"  # safetensors takes back what it has written
    if runtime and SHARED_MEMORY.search(text):
        return "shared-memory-full"
    if runtime and (killed := WORKER.search(text)) and oom and killed[2] in ("Killed", None):
        return "out-of-memory"
    if BROKEN_GPU.search(text) and (kind == "torch.AcceleratorError" or FROM_CUDA.search(text)):
        return "gpu-failed"
    network = ("torch.distributed.DistNetworkError", "torch.distributed.DistStoreError")
    communicates = kind in ("torch.distributed.DistBackendError", *network)
    if communicates or (runtime and FROM_GLOO.search(text)):
        joins = any(name == "init_process_group" for _, _, name in error["frames"])
        if kind in network and not joins and not any(address in text for address in addresses):
            return "program-failed"  # a store that the program opened itself
        if NO_MEMORY.search(text):
            return "gpu-out-of-memory"
        if "EADDRINUSE" in text:
            return "port-in-use"
        if TIMED_OUT.search(text):
            return "collective-timeout"
        if LOST.search(text):
            return "peer-lost"
    return "program-failed"


def of_abort(lines: list[str]) -> tuple[str, str]:
    """Cause of a SIGABRT, and the line that tells it: torch's watchdogs end the process so."""
    found = ("killed", "")
    for line in filter(FROM_WATCHDOG.search, lines):
        if WATCHDOG in line:
            return "collective-timeout", WATCHDOG + line.partition(WATCHDOG)[2]
        if "watchdog got stuck" in line or ("exception" in line and TIMED_OUT.search(line)):
            return "collective-timeout", line
        if NO_MEMORY.search(line):
            return "gpu-out-of-memory", line
        if "terminated with exception" in line:
            return "killed", line
        if LOST.search(line) and not ATTEMPT.search(line):
            found = ("peer-lost", line)
    return found


def signal_of(code: int, program: tuple[str, ...]) -> int:
    """The signal that ended a rank, also through a shell, which adds 128 to it; else 0."""
    if code < 0:
        return -code
    shell = os.path.basename(program[0]) in processes.SHELLS or program[0].endswith(".sh")
    return code - 128 if shell and code - 128 in list(signal.Signals) else 0


def describe_errors(errors: list[dict], program: str) -> str:
    """`Type: text (place)`, and the exceptions behind it."""
    parts = []
    for error in errors[:4]:
        name, text = error["kinds"][0].rpartition(".")[2] or "exception", error["text"]
        parts.append(f"{error['how']} {name}{': ' if text else ''}{text}".strip()[:600])
    if place := stacks.place(errors[0]["frames"], program):
        parts[0] += f" ({place})"
    return ", ".join(parts)
