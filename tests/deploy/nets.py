"""Weights on the grid of chapter 5, and a small network of them with a norm, for files."""

import torch
from torch import Tensor, nn


def smol(weight: Tensor, precision: Tensor, exponent: int = 0) -> Tensor:
    """The nearest odd multiple of 2**(1-p), p per weight, zero where p is 0."""
    step = 2.0 ** (1 - precision.double())
    half = 2.0 ** (precision.double() - 1)
    j = torch.floor(weight.double() / 2.0**exponent / (2 * step)).clamp(-half, half - 1)
    return torch.where(precision == 0, 0.0, (2 * j + 1) * step * 2.0**exponent).to(weight.dtype)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 4, 5))
    with torch.no_grad():
        for i in (0, 4):
            weight = model[i].weight
            weight.copy_(smol(weight, torch.randint(0, 5, weight.shape), exponent=-2))
    model(torch.randn(4, 3, 4, 4))
    return model
