"""AdamW, and its state on disk and on all ranks."""

from __future__ import annotations

from pathlib import Path

import torch

from gpuworker.train.distributed import World

FILE = "optimizer.pt"
STATE = ("step", "exp_avg", "exp_avg_sq")


def adamw(parameters: list[torch.nn.Parameter], lr: float, decay: float) -> torch.optim.AdamW:
    """Weight decay is for matrices; biases and norms go without."""
    groups = [
        {"params": [each for each in parameters if each.dim() >= 2], "weight_decay": decay},
        {"params": [each for each in parameters if each.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=lr, fused=True)


def step(optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], rate: float, clip: float) -> None:
    if clip:
        torch.nn.utils.clip_grad_norm_(parameters, clip)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def save(optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], folder: Path) -> None:
    states = [optimizer.state[each] for each in parameters]
    torch.save({name: [state[name] for state in states] for name in STATE} if states[0] else {}, folder / FILE)


def load(
    optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], folder: Path | None, world: World
) -> None:
    """What `save` wrote, read by rank 0 (the others have no folder) and sent to all. Collective."""
    saved = torch.load(folder / FILE, map_location=world.device, weights_only=True) if folder else {}
    if not world.broadcast(bool(saved)):
        return  # saved before the first step
    for number, parameter in enumerate(parameters):
        empty = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
        for name, tensor in empty.items():
            if saved:
                tensor.detach().copy_(saved[name][number])
            world.broadcast_tensor(tensor.detach())
        optimizer.state[parameter] = empty
