"""Tiny networks for the tests of runtimes, trained a few steps for one of them."""

import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.core.method import Method


class Words(nn.Module):
    """An embedding, linear layers with and without bias, and a head that may be tied to the embedding."""

    def __init__(self, tied: bool = False, width: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.head = nn.Linear(width, 40, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        x: Tensor = self.embedding(words)
        x = x + self.down(self.up(x).relu())
        return self.head(x)  # type: ignore[no-any-return]


class Pictures(nn.Module):
    """Convolutions, one of them by channel, with norms, and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, bias=False)
        self.norm = nn.BatchNorm2d(32)
        self.depth = nn.Conv2d(32, 32, 3, groups=32)
        self.point = nn.Conv2d(32, 64, 1)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        return self.head(self.point(self.depth(x).relu()).mean((2, 3)))  # type: ignore[no-any-return]


def words() -> Tensor:
    return torch.randint(40, (3, 5), generator=torch.Generator().manual_seed(1))


def pictures() -> Tensor:
    return torch.randn(4, 3, 9, 9, generator=torch.Generator().manual_seed(1))


def batch_for(model: nn.Module) -> Tensor:
    return words() if isinstance(model, Words) else pictures()


def trained(model: nn.Module, runtime: str, *methods: Method, steps: int = 3) -> nn.Module:
    """Train on a runtime's values for a few steps, and finalize."""
    plan = pt.compress(model, *(methods or (pt.SMOL(),)), steps=steps, runtime=runtime)
    optimizer = torch.optim.Adam(plan.param_groups(), lr=1e-2)
    for _ in range(steps):
        model(batch_for(model)).square().mean().backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    return plan.finalize().eval()
