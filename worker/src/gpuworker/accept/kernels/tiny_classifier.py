"""Training of a network that is small enough for any device, on data that it can learn."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

BATCH, EPOCH_STEPS = 256, 16  # 4000 samples in an epoch, as in the original acceptance suite
FEATURES, CLASSES = 128, 4
NOISE = 3.0  # standard deviation of a point around the center of its class


def tiny_training(
    device: torch.device,
    steps: int = 60,
    rank: int = 0,
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
    poison: bool = False,
) -> tuple[float, float]:
    """Train a 128→256→4 classifier; return the mean loss of the first and of the last fifth of the
    steps, at most five.

    Steps are compared, not epochs, so that one epoch (EPOCH_STEPS) can show that the loss falls.
    All ranks share the network and the classes, each draws its own samples (`rank`).
    `wrap` turns the network into a distributed one; `poison` puts a NaN into one input, as a fault.
    Raises ValueError for fewer than two steps.
    """
    if steps < 2:
        raise ValueError(f"{steps} steps: the loss of the first and of the last cannot be compared")
    torch.manual_seed(0)
    centers = torch.randn(CLASSES, FEATURES)
    network = nn.Sequential(
        nn.Linear(FEATURES, 2 * FEATURES), nn.ReLU(), nn.Linear(2 * FEATURES, CLASSES)
    )
    model = wrap(network.to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    samples = torch.Generator().manual_seed(1000 + rank)
    losses = []
    for step in range(steps):
        labels = torch.randint(CLASSES, (BATCH,), generator=samples)
        inputs = centers[labels] + NOISE * torch.randn(BATCH, FEATURES, generator=samples)
        if poison and step == steps // 2:
            inputs[0, 0] = math.nan
        loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    some = min(5, math.ceil(steps / 5))
    return sum(losses[:some]) / some, sum(losses[-some:]) / some
