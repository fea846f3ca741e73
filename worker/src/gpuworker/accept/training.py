"""A network small enough to train anywhere in a second, on data that it can learn."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def tiny_training(
    device: torch.device,
    steps: int = 60,
    batch: int = 256,
    seed: int = 0,
    rank: int = 0,
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> tuple[float, float]:
    """Train a 128→256→4 classifier; return the mean loss of the first and of the last five steps.

    All ranks share the network and the classes (`seed`), each draws its own samples (`rank`). `wrap` turns the
    network into a distributed one.
    """
    torch.manual_seed(seed)
    classes = torch.randn(4, 128)
    model = wrap(nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 4)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    samples = torch.Generator().manual_seed(1000 + rank)
    losses = []
    for _ in range(steps):
        labels = torch.randint(4, (batch,), generator=samples)
        inputs = classes[labels] + 3 * torch.randn(batch, 128, generator=samples)
        loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[:5]) / 5, sum(losses[-5:]) / 5
