"""Agreement of all ranks on the step after which they save, and exit on SIGTERM."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from gpuworker.runtime.contract import ExitCode
from gpuworker.train.distributed import DistributedContext

removed_on_exit: set[Path] = set()  # temporary folders, if a signal ends the process


class Stopped(Exception):
    """All ranks have agreed to stop here."""


SAVE, STOP = 1, 2  # what a rank requests; the ranks agree on the largest


class StopSignal:
    """Request of any rank to save or to stop, agreed on by all ranks at the next step boundary.

    Before the first step there is nothing to save, so a signal ends the process at once. A thread does it, because the
    main thread may wait in C++ for data or for other ranks, where no Python handler runs.

    Every boundary takes part in one all-reduce of a byte on the CPU. The all-reduce starts with the step and is waited
    for at its end, so it overlaps with the step.
    """

    requested = False
    ends_process = True  # at once; false while the ranks train, and after the run
    save_is_due: Callable[[], bool] = staticmethod(lambda: False)  # for rank 0

    def install(self) -> None:
        """Install the signal handlers. Call it first: a signal before this ends the process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.request)
        if threading.current_thread() is threading.main_thread():
            reader, writer = os.pipe()
            os.set_blocking(writer, False)
            signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
            threading.Thread(target=self.exit_on_signal, args=(reader,), name="stop", daemon=True).start()

    def exit_on_signal(self, reader: int) -> None:
        while number := os.read(reader, 1):
            if number[0] in (signal.SIGTERM, signal.SIGINT) and self.ends_process:
                for folder in list(removed_on_exit):
                    shutil.rmtree(folder, ignore_errors=True)
                os._exit(ExitCode.STOPPED)

    def start_training(self) -> None:
        """From now on a signal is a request, which the ranks agree on."""
        self.ends_process = False
        if self.requested:
            os._exit(ExitCode.STOPPED)

    def request(self, *_: object) -> None:
        self.requested = True

    def start_agreement(self, context: DistributedContext) -> None:
        self.flag = torch.tensor([STOP if self.requested else SAVE * self.save_is_due()], dtype=torch.uint8)
        distributed = context.world_size > 1
        self.work = dist.all_reduce(self.flag, op=dist.ReduceOp.MAX, async_op=True) if distributed else None

    def agreed(self) -> bool:
        """Whether a stop was requested on some rank before its step started. Sets `save` if a save was."""
        if self.work:
            self.work.wait()
        agreed = int(self.flag) if self.work or not self.requested else STOP
        self.save = agreed == SAVE
        return agreed == STOP
