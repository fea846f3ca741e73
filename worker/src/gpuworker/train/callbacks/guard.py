"""Steps that must not count: of ranks that train alone, and with gradients that are not finite."""

import os

import torch
from transformers import TrainerCallback

from gpuworker.runtime.contract import Tag
from gpuworker.runtime.log import log


class Guard(TrainerCallback):
    """Drops the gradients of a step that are not finite, and counts such steps of this start."""

    def __init__(self) -> None:
        self.steps, self.skipped = 0, 0

    def on_train_begin(self, args, state, control, **_) -> None:
        started = int(os.environ.get("WORLD_SIZE", 1))
        if args.world_size != started:
            raise RuntimeError(
                f"the launcher started {started} ranks, and the Trainer sees {args.world_size}: "
                "they would train alone, into one folder; without GPUs set use_cpu and "
                "ddp_backend=gloo"
            )

    def on_pre_optimizer_step(self, args, state, control, model=None, optimizer=None, **_) -> None:
        self.steps += 1
        grads = [each.grad for each in model.parameters() if each.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of FSDP2
        if not torch.isfinite(norm):  # the same on all ranks, which have reduced their gradients
            self.skipped += 1
            optimizer.zero_grad(set_to_none=True)
            if args.process_index == 0:
                log(Tag.STEP, rank=0, step=state.global_step + 1, skipped="not-finite")

    @property
    def failed(self) -> bool:
        """Whether at least half of the steps did not count."""
        return self.steps > 0 and 2 * self.skipped >= self.steps
