"""Timed copies between host and GPU and between GPUs; on the CPU between buffers in memory."""

from __future__ import annotations

import threading

import torch

from gpuworker.accept.kernels import timing


class HostLink:
    """Pinned buffers of `size` bytes on the host and their counterparts on one device."""

    def __init__(self, device: torch.device, size: int) -> None:
        words, pinned = size // 4, device.type == "cuda"
        self.device = device
        self.sent = torch.empty(words, dtype=torch.int32, pin_memory=pinned).copy_(_content(words))
        self.back = torch.zeros(words, dtype=torch.int32, pin_memory=pinned)
        self.on_device = torch.zeros(words, dtype=torch.int32, device=device)
        self.returned = self.on_device.clone()  # so that the two directions use different memory
        self.second = torch.cuda.Stream(device) if pinned else None

    def seconds(self, name: str, repeats: int, delay_s: float = 0.0) -> list[float]:
        """name: link_h2d, link_d2h or link_both."""
        action = {"link_h2d": self._in, "link_d2h": self._out, "link_both": self._both}[name]

        def run() -> None:
            action()
            if delay_s:
                timing.hold_stream(self.device, delay_s)

        return timing.seconds(run, self.device, repeats)

    def wrong_words(self) -> int:
        """Number of words that differ after a copy to the device and back."""
        self.on_device.zero_()
        self.back.zero_()
        self.on_device.copy_(self.sent)
        self.back.copy_(self.on_device)
        return int((self.back != self.sent).sum())

    def _in(self) -> None:
        self.on_device.copy_(self.sent, non_blocking=True)

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
    """Send and receive buffer of one device. All devices send the same data."""

    def __init__(self, device: torch.device, size: int) -> None:
        self.device = device
        self.sent = _content(size // 4).to(device)
        self.received = torch.zeros_like(self.sent)

    def wrong_words(self) -> int:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return int((self.received != self.sent).sum())


def seconds_between(
    source: PeerBuffers, target: PeerBuffers, repeats: int, delay_s: float = 0.0
) -> list[float]:
    """Seconds of each copy from source to target. torch copies on the stream of the source."""

    def run() -> None:
        target.received.copy_(source.sent, non_blocking=True)
        if delay_s:
            timing.hold_stream(source.device, delay_s)

    if source.device.type == "cpu":
        return timing.seconds(run, source.device, repeats)
    with torch.cuda.device(source.device):
        taken = timing.seconds(run, source.device, repeats)
        torch.cuda.synchronize(target.device)
    return taken


def direct(a: torch.device, b: torch.device) -> bool:
    """Whether a reaches the memory of b without the host."""
    return a.type == "cpu" or torch.cuda.can_device_access_peer(a, b)


_made: dict[int, torch.Tensor] = {}
_making = threading.Lock()


def _content(words: int) -> torch.Tensor:
    """Test data, equal on all devices; every word differs from its neighbours."""
    # the threads of all devices come at once, and the 64-bit words take three times the memory
    with _making:
        if words not in _made:
            _made[words] = (
                torch.arange(words).mul_(2654435761).bitwise_and_(0x7FFFFFFF).to(torch.int32)
            )
        return _made[words]
