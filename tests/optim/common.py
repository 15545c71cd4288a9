"""The optimizers under test, a small network, and a training loop, for all tests of this folder."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from paretorch.optim import AnnealedAdam, AvaGrad, AvaGradW, DelayedAdam

KINDS = [AvaGrad, AvaGradW, DelayedAdam, AnnealedAdam]
every_kind = pytest.mark.parametrize("kind", KINDS)


def build(kind, params, **options):
    if kind is AnnealedAdam:
        options.setdefault("steps", 100)
    return kind(params, **options)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def train(model: nn.Module, optimizer, steps: int, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(5, 6, generator=generator)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])
