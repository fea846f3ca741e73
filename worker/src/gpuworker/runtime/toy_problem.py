"""Small learnable problem for checks of training: points around random class centers, and a network
that learns them.

torch is imported by the functions, so that importing this module does not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

FEATURES, CLASSES = 128, 4
NOISE = 3.0  # standard deviation of a point around its center


def make_network(features: int = FEATURES, classes: int = CLASSES) -> torch.nn.Sequential:
    from torch import nn

    return nn.Sequential(
        nn.Linear(features, 2 * features), nn.ReLU(), nn.Linear(2 * features, classes)
    )


def sample_points(
    centers: torch.Tensor, count: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Points, float32 [count, features], and their classes, int64 [count]. `centers`: [classes,
    features].
    """
    import torch

    labels = torch.randint(len(centers), (count,), generator=generator)
    return centers[labels] + NOISE * torch.randn(
        count, centers.shape[1], generator=generator
    ), labels
