"""Network and data of trainer and evaluator: points of a curve with noise."""

import math

import torch


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))


def points(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 1, generator=generator) * 2 - 1
    return x, torch.sin(math.pi * x) + 0.05 * torch.randn(count, 1, generator=generator)
