"""Throughput of training: tokens per second, model FLOPs utilization, waiting for data and for other ranks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from gpuworker.runtime import gpu_specs


def peak_flops(device: torch.device) -> float:
    """Dense bfloat16 FLOP/s that the vendor states; 0 for CPUs and for GPUs without an entry in gpu_specs.yaml."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return gpu_specs.figures("gemm_bf16", name).get("specification", 0.0) * 1e12


def record_time(device: torch.device):
    """Time mark in the device's stream, recorded without waiting for the device."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(first, second) -> float:
    """Seconds between two time marks. The device must have passed both."""
    return second - first if isinstance(first, float) else first.elapsed_time(second) / 1000


@dataclass
class ThroughputMeter:
    """Counters since the last interval.

    `local_backward_s`: seconds of a backward pass without communication, 0 if unknown. Exposed communication is the
    time by which a backward pass with communication takes longer. Communication hidden behind computation is not in it.
    """

    device: torch.device
    world_size: int
    flops_per_token: float = 0.0  # forward and backward
    local_backward_s: float = 0.0
    tokens: int = 0
    data_s: float = 0.0
    steps: int = 0
    backward_times: list[tuple] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def reset(self) -> None:
        """Start an interval. Call it after what is not a training step: an evaluation, a checkpoint."""
        self.tokens = self.steps = 0
        self.data_s = 0.0
        self.backward_times.clear()
        self.started = time.perf_counter()

    def measure(self) -> dict[str, float]:
        """Figures of the interval. Starts the next one."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds = max(1e-9, time.perf_counter() - self.started)
        figures = {
            "tokens_per_s": self.tokens / seconds,
            "step_s": seconds / max(1, self.steps),
            "data_wait": self.data_s / seconds,
        }
        if self.flops_per_token and (peak := peak_flops(self.device)):
            figures["mfu"] = self.tokens / self.world_size * self.flops_per_token / seconds / peak
        if self.local_backward_s and self.backward_times:
            exposed = sum(max(0.0, seconds_between(*pair) - self.local_backward_s) for pair in self.backward_times)
            figures["communication"] = exposed / seconds
        self.reset()
        return figures


def format_duration(seconds: float) -> str:
    """Short form of a duration: 1h05m, 3m20s, 12s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: of the GPU's allocator, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
