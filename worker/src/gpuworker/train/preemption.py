"""SIGTERM: all ranks agree on the step after which they save and end."""

from __future__ import annotations

import signal

import torch
import torch.distributed as dist

from gpuworker.train.distributed import World

SAVED = 75  # the exit code that means: stopped, saved, start me again


class Stopped(Exception):
    """All ranks have agreed to stop here."""


class Stop:
    """Asked for by a signal on any rank; agreed at the next boundary, by all.

    Every boundary takes part in one all-reduce of a byte on the CPU. It begins when a step begins and is waited for
    when the step ends, so it costs no time of its own.
    """

    asked = False

    def listen(self) -> None:
        """Call it first of all: a signal before this ends the process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.ask)

    def ask(self, *_: object) -> None:
        self.asked = True

    def begin(self, world: World) -> None:
        self.flag = torch.tensor([self.asked], dtype=torch.uint8)
        self.work = dist.all_reduce(self.flag, op=dist.ReduceOp.MAX, async_op=True) if world.size > 1 else None

    def agreed(self) -> bool:
        """Whether some rank had been asked when its step began."""
        if self.work:
            self.work.wait()
            return bool(self.flag)
        return self.asked
