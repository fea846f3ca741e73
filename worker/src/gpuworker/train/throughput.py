"""Where the time of a training goes: tokens a second, share of the peak, waiting for data, waiting for other ranks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from gpuworker.runtime import gpu_specs


def peak_flops(device: torch.device) -> float:
    """Dense bfloat16 FLOP/s that the maker states; 0 for devices that gpu_specs.yaml does not list, and for CPUs."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return gpu_specs.figures("gemm_bf16", name).get("specification", 0.0) * 1e12


def mark(device: torch.device):
    """A moment in what the device does: taken without waiting for it."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(first, second) -> float:
    """Of two marks, once the device has passed both."""
    return second - first if isinstance(first, float) else first.elapsed_time(second) / 1000


@dataclass
class Meter:
    """Counts since the last interval. `alone_s`: seconds of a backward pass that talks to no other rank, 0 if unknown.

    Exposed communication is by how much a backward pass with communication takes longer than one without: what is
    hidden behind the computation is not in it.
    """

    device: torch.device
    world: int
    flops: float = 0.0  # of one token, forward and backward
    alone_s: float = 0.0
    tokens: int = 0
    data_s: float = 0.0
    steps: int = 0
    backward: list[tuple] = field(default_factory=list)
    since: float = field(default_factory=time.perf_counter)

    def restart(self) -> None:
        """Leave out what is no training step: an evaluation, a checkpoint."""
        self.tokens = self.steps = 0
        self.data_s = 0.0
        self.backward.clear()
        self.since = time.perf_counter()

    def read(self) -> dict[str, float]:
        """Figures of the interval; the next one begins."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds = max(1e-9, time.perf_counter() - self.since)
        figures = {
            "tokens_per_s": self.tokens / seconds,
            "step_s": seconds / max(1, self.steps),
            "data_wait": self.data_s / seconds,
        }
        if self.flops and (peak := peak_flops(self.device)):
            figures["mfu"] = self.tokens / self.world * self.flops / seconds / peak
        if self.alone_s and self.backward:
            waited = sum(max(0.0, seconds_between(*pair) - self.alone_s) for pair in self.backward)
            figures["communication"] = waited / seconds
        self.restart()
        return figures


def duration(seconds: float) -> str:
    """As people say it: 1h05m, 3m20s, 12s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def peak_memory(device: torch.device) -> int:
    """Bytes: of the GPU's allocator, or of the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
