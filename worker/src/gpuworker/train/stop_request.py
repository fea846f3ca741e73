"""Request of any rank to stop, on which all ranks agree at the end of the same step."""

import os
import signal
import sys
from typing import NoReturn

import torch
import torch.distributed as dist

from gpuworker.runtime.contract import ExitCode, Tag
from gpuworker.runtime.log import log
from gpuworker.runtime.process_group import keep_alive


class StopRequest:
    """SIGTERM on any rank. Call install() on all ranks before the first step, then agreed() at the
    end of each.

    The ranks agree by an all-reduce of one byte. Without it, ranks that read their own signal stop
    after different steps, and wait for each other forever.
    """

    requested, group = False, None

    def install(self) -> None:
        """From now on SIGTERM is a request. Before this it ends the process: there is nothing to
        save.
        """
        if dist.is_initialized() and dist.get_world_size() > 1:
            # The program's own group may have no backend for CPU tensors.
            self.group = dist.new_group(backend="gloo")
        signal.signal(signal.SIGTERM, self.request)

    def request(self, *_: object) -> None:
        self.requested = True

    def agreed(self) -> bool:
        """Whether any rank has a request."""
        if not self.group:
            return self.requested
        flag = keep_alive(torch.tensor([self.requested], dtype=torch.uint8))
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.group)
        return bool(flag)

    def exit_saved(self, step: int, checkpoint: str) -> NoReturn:
        """Exit with the code that asks for another start, once all ranks have saved."""
        if self.group:
            dist.barrier(group=self.group)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one changes nothing
        log(
            Tag.DONE,
            rank=global_rank(),
            status="saved",
            exit_code=int(ExitCode.SAVED),
            step=step,
            checkpoint=checkpoint,
        )
        sys.exit(ExitCode.SAVED)


def global_rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def from_rank_0(choice: str | None) -> str | None:
    """Rank 0's choice on all ranks, because volumes may show other nodes a new file later.

    Raises RuntimeError before the ranks have a process group: a Trainer makes it.
    """
    choices = [choice]
    if dist.is_initialized():
        dist.broadcast_object_list(choices)
    elif int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise RuntimeError("the ranks have no process group yet: choose after the Trainer is made")
    return choices[0]
