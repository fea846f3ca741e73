"""AdamW that skips gradients which are not finite, with its state on disk and on all ranks.

With --fp16 losses are multiplied by a scale, because most gradients are too small for float16. A gradient that
overflows halves the scale, and 2,000 steps without one double it (torch.amp.GradScaler).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from gpuworker.train.distributed import DistributedContext

FILE = "optimizer.pt"
STATE_TENSORS = ("step", "exp_avg", "exp_avg_sq")
MAX_SKIPPED = 10  # steps in a row
MAX_SKIPPED_FP16 = 50  # of these, the first ones only lower the scale
FIRST_SCALE = 65536.0


def adamw(parameters: list[torch.nn.Parameter], lr: float, decay: float, betas) -> torch.optim.AdamW:
    """Optimizer with weight decay for matrices and none for biases and norms."""
    groups = [
        {"params": [each for each in parameters if each.dim() >= 2], "weight_decay": decay},
        {"params": [each for each in parameters if each.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=lr, betas=tuple(betas), fused=True)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor: a part of a sharded one, or all of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Updater:
    """Optimizer steps of one rank. A gradient that is not finite changes nothing, and is counted.

    The counts and the norm of the last gradient stay on the device until they are read, so that no step waits for it.
    """

    def __init__(
        self,
        parameters: list[torch.nn.Parameter],
        lr: float,
        decay: float,
        clip: float,
        betas=(0.9, 0.999),
        fp16: bool = False,
    ):
        self.parameters, self.clip = parameters, clip
        self.max_skipped = MAX_SKIPPED_FP16 if fp16 else MAX_SKIPPED
        # Without --fp16 it does nothing.
        self.scaler = torch.amp.GradScaler(parameters[0].device.type, init_scale=FIRST_SCALE, enabled=fp16)
        self.optimizer = adamw(parameters, lr, decay, betas)
        self.norm = torch.zeros((), device=parameters[0].device)  # before clipping
        self.counts = torch.zeros(2, device=parameters[0].device)  # of skipped steps: all, and in a row

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss whose gradients `step` takes."""
        return self.scaler.scale(loss)

    def step(self, lr: float) -> torch.Tensor:
        """Take a step. Returns 1 if it was skipped, else 0."""
        self.scaler.unscale_(self.optimizer)
        self.norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.clip or float("inf"))
        if isinstance(self.norm, DTensor):
            self.norm = self.norm.full_tensor()
        skip = (~self.norm.isfinite()).float()
        self.counts[0] += skip
        self.counts[1] = (self.counts[1] + 1) * skip
        # The fused kernels of AdamW then leave weights and state as they are. The scaler puts its own finding here.
        self.optimizer.found_inf = skip
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return skip

    def skipped(self) -> tuple[int, int]:
        """Skipped steps of the run: all, and in a row until now."""
        total, in_a_row = self.counts.tolist()
        return int(total), int(in_a_row)

    def weights_are_finite(self) -> bool:
        """Whether this rank's weights are finite."""
        parts = [local_part(each.detach()) for each in self.parameters]
        return all(torch.stack([each.isfinite().all() for each in parts]).tolist())


def allocate(optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]) -> None:
    """Create the state that the optimizer would create in its first step."""
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }


def state_of(optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]) -> dict[str, list[torch.Tensor]]:
    """The state of each parameter; empty before the first step."""
    states = [optimizer.state[each] for each in parameters]
    return {name: [state[name] for state in states] for name in STATE_TENSORS} if states[0] else {}


def save(state: dict[str, list[torch.Tensor]], folder: Path) -> None:
    torch.save(state, folder / FILE)


def load(
    optimizer: torch.optim.Optimizer,
    parameters: list[torch.nn.Parameter],
    folder: Path | None,
    context: DistributedContext,
) -> None:
    """Load the state that `save` wrote. Rank 0 reads it (the others have no folder) and sends it to all. Collective."""
    saved = torch.load(folder / FILE, map_location="cpu", mmap=True, weights_only=True) if folder else {}
    if not context.broadcast_object(bool(saved)):
        return  # saved before the first step
    allocate(optimizer, parameters)
    for number, parameter in enumerate(parameters):
        for name, tensor in optimizer.state[parameter].items():
            if saved:
                tensor.copy_(saved[name][number])
            context.broadcast_tensor(tensor)
