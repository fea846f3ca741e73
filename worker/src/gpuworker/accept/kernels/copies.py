"""Timed copies between host and GPU and between GPUs; on the CPU between buffers in memory."""

from __future__ import annotations

import torch

from gpuworker.accept.kernels import timing


def content(words: int) -> torch.Tensor:
    """Test data; every word differs from its neighbours."""
    return torch.arange(words).mul_(2654435761).bitwise_and_(0x7FFFFFFF).to(torch.int32)


class Link:
    """A way from one buffer to another one. `device`: the GPU on whose stream torch copies, that of
    the source if it is one.
    """

    def __init__(self, device: torch.device, source: torch.Tensor, target: torch.Tensor) -> None:
        self.device, self.source, self.target = device, source, target

    def copy(self) -> None:
        self.target.copy_(self.source, non_blocking=True)

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
        self.target.zero_()
        self.copy()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if flip:
            self.target[7] ^= 1
        return int((self.target != right.to(self.target.device)).sum())
