"""A tiny network with a batch norm, a batch for it, and the user's loop."""

import torch
from torch import Tensor, nn

from paretorch import SMOL, ContinuousSparsification, Plan, compress
from paretorch.core.method import Method


def small_net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(54, 4), nn.Linear(4, 3)
    )


def batch(n: int = 8, seed: int = 1) -> Tensor:
    return torch.randn(n, 2, 3, 3, generator=torch.Generator().manual_seed(seed))


def both(**options: float) -> tuple[Method, Method]:
    return ContinuousSparsification(target=0.5), SMOL(target_bits=1.5, **options)


def train(plan: Plan, optimizer: torch.optim.Optimizer, x: Tensor, steps: int) -> None:
    for _ in range(steps):
        output = plan.model(x)
        nn.functional.cross_entropy(output, torch.arange(len(x)) % output.shape[1]).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()


def trained(*methods: Method, steps: int = 6) -> tuple[nn.Module, Plan, torch.optim.Optimizer]:
    model = small_net()
    plan = compress(model, *(methods or both()), steps=steps)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05, momentum=0.9)
    train(plan, optimizer, batch(), steps)
    return model, plan, optimizer
