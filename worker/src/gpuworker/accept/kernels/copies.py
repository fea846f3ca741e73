"""Timed copies between host and GPU and between GPUs; on the CPU between buffers in memory."""

from __future__ import annotations

import contextlib

import torch

from gpuworker.accept.kernels import timing


def content(words: int) -> torch.Tensor:
    """Test data; every word differs from its neighbours."""
    return torch.arange(words).mul_(2654435761).bitwise_and_(0x7FFFFFFF).to(torch.int32)


class Link:
    """A way from one buffer to another one, or two such ways at the same time. `device`: the GPU
    on whose stream torch copies, that of the first source if it is one.
    """

    def __init__(self, device: torch.device, *ways: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.device, self.ways = device, ways
        two = len(ways) > 1 and device.type == "cuda"
        self.second = torch.cuda.Stream(device) if two else None

    def copy(self) -> None:
        (source, target), *more = self.ways
        if self.second:
            self.second.wait_stream(first := torch.cuda.current_stream(self.device))
        target.copy_(source, non_blocking=True)
        with torch.cuda.stream(self.second) if self.second else contextlib.nullcontext():
            for source, target in more:
                target.copy_(source, non_blocking=True)
        if self.second:
            first.wait_stream(self.second)

    def seconds(self, repeats: int, delay_s: float = 0.0) -> list[float]:
        """Of each copy."""

        def run() -> None:
            self.copy()
            if delay_s:
                timing.hold_stream(self.device, delay_s)

        return timing.seconds(run, self.device, repeats)

    def wrong_words(self, right: torch.Tensor, flip: bool = False) -> int:
        """Number of words that differ after a copy of what the source holds, `right`. `flip`
        injects a fault.
        """
        ((_, target),) = self.ways
        target.zero_()
        self.copy()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if flip:
            target[7] ^= 1
        return int((target != right.to(target.device)).sum())
