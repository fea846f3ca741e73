"""Copies between host and GPU and between GPUs, timed. On the CPU the same copies between its own buffers.

The CUDA paths have not yet run on a GPU.
"""

from __future__ import annotations

import functools
import time

import torch

from gpuworker.accept.kernels import timing


class HostLink:
    """Pinned buffers of `size` bytes on the host and their counterparts on one device."""

    def __init__(self, device: torch.device, size: int) -> None:
        words, pinned = size // 4, device.type == "cuda"
        self.device = device
        self.sent = torch.empty(words, dtype=torch.int32, pin_memory=pinned).copy_(_content(words))
        self.back = torch.zeros(words, dtype=torch.int32, pin_memory=pinned)
        self.there = torch.zeros(words, dtype=torch.int32, device=device)
        self.returned = self.there.clone()  # so that both directions at once touch different memory
        self.second = torch.cuda.Stream(device) if pinned else None

    def seconds(self, name: str, repeats: int, drag_s: float = 0.0) -> list[float]:
        """name: link_h2d, link_d2h or link_both."""
        action = {"link_h2d": self._in, "link_d2h": self._out, "link_both": self._both}[name]

        def run() -> None:
            action()
            if drag_s:
                timing.hold_stream(self.device, drag_s)

        return timing.seconds(run, self.device, repeats)

    def wrong_words(self) -> int:
        """Words that differ after the way to the device and back."""
        self.there.zero_()
        self.back.zero_()
        self.there.copy_(self.sent)
        self.back.copy_(self.there)
        return int((self.back != self.sent).sum())

    def _in(self) -> None:
        self.there.copy_(self.sent, non_blocking=True)

    def _out(self) -> None:
        self.back.copy_(self.returned, non_blocking=True)

    def _both(self) -> None:
        if self.second is None:
            self._in()
            return self._out()
        first = torch.cuda.current_stream(self.device)
        self.second.wait_stream(first)
        self._in()
        with torch.cuda.stream(self.second):
            self._out()
        first.wait_stream(self.second)


class PeerBuffers:
    """What one device sends to its peers, the same on every device, and what it received."""

    def __init__(self, device: torch.device, size: int) -> None:
        self.device = device
        self.sent = _content(size // 4).to(device)
        self.received = torch.zeros_like(self.sent)

    def wrong_words(self) -> int:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return int((self.received != self.sent).sum())


def seconds_between(source: PeerBuffers, target: PeerBuffers, repeats: int, drag_s: float = 0.0) -> list[float]:
    """Seconds of each copy from source to target. torch copies on the stream of the source."""

    def run() -> None:
        target.received.copy_(source.sent, non_blocking=True)
        if drag_s:
            timing.hold_stream(source.device, drag_s)

    if source.device.type == "cpu":
        return timing.seconds(run, source.device, repeats)
    with torch.cuda.device(source.device):
        taken = timing.seconds(run, source.device, repeats)
        torch.cuda.synchronize(target.device)
    return taken


def exchange(pairs: list[tuple[PeerBuffers, PeerBuffers]], repeats: int = 10) -> dict[tuple[str, str], float]:
    """Both directions of all pairs at once: pair -> seconds of one exchange, by the host's clock over all of them.

    Every pair gets the time of the slowest: they end together or the fabric is not up to all of them.
    """

    def once() -> None:
        for a, b in pairs:
            a.received.copy_(b.sent, non_blocking=True)
            b.received.copy_(a.sent, non_blocking=True)

    def settle() -> None:
        for device in {buffers.device for pair in pairs for buffers in pair}:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    once()
    settle()
    start = time.perf_counter()
    for _ in range(repeats):
        once()
    settle()
    taken = (time.perf_counter() - start) / repeats
    return {(str(a.device), str(b.device)): taken for a, b in pairs}


def direct(a: torch.device, b: torch.device) -> bool:
    """Can a reach the memory of b without the host?"""
    if a == b or a.type == "cpu":
        return True
    return torch.cuda.can_device_access_peer(a, b)


@functools.cache
def _content(words: int) -> torch.Tensor:
    """Every word differs from its neighbours; the same everywhere."""
    return (torch.arange(words) * 2654435761 & 0x7FFFFFFF).to(torch.int32)
