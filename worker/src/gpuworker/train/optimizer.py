"""AdamW, with its state on disk and on all ranks."""

from __future__ import annotations

from pathlib import Path

import torch

from gpuworker.train.distributed import DistributedContext

FILE = "optimizer.pt"
STATE_TENSORS = ("step", "exp_avg", "exp_avg_sq")


def adamw(parameters: list[torch.nn.Parameter], lr: float, decay: float) -> torch.optim.AdamW:
    """Optimizer with weight decay for matrices and none for biases and norms."""
    groups = [
        {"params": [each for each in parameters if each.dim() >= 2], "weight_decay": decay},
        {"params": [each for each in parameters if each.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=lr, fused=True)


def step(optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], lr: float, clip: float) -> None:
    if clip:
        torch.nn.utils.clip_grad_norm_(parameters, clip)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def save(optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], folder: Path) -> None:
    states = [optimizer.state[each] for each in parameters]
    tensors = {name: [state[name] for state in states] for name in STATE_TENSORS} if states[0] else {}
    torch.save(tensors, folder / FILE)


def load(
    optimizer: torch.optim.Optimizer,
    parameters: list[torch.nn.Parameter],
    folder: Path | None,
    context: DistributedContext,
) -> None:
    """Load the state that `save` wrote. Rank 0 reads it (the others have no folder) and sends it to all. Collective."""
    saved = torch.load(folder / FILE, map_location=context.device, weights_only=True) if folder else {}
    if not context.broadcast_object(bool(saved)):
        return  # saved before the first step
    for number, parameter in enumerate(parameters):
        state = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
        for name, tensor in state.items():
            if saved:
                tensor.detach().copy_(saved[name][number])
            context.broadcast_tensor(tensor.detach())
        optimizer.state[parameter] = state
