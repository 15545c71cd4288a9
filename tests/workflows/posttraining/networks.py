"""Small networks for post-training: plain, depthwise with batch norm, a tied language model."""

import torch
from torch import Tensor, nn


def perceptron(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 10)).eval()


class Depthwise(nn.Module):
    """Blocks of depthwise and pointwise convolutions with batch norm, the ranges of whose channels differ."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem = nn.Conv2d(3, 24, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(24)
        self.depthwise = nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=False)
        self.norm2 = nn.BatchNorm2d(24)
        self.pointwise = nn.Conv2d(24, 48, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(48)
        self.grouped = nn.Conv2d(48, 48, 3, stride=2, groups=4)
        self.head = nn.Linear(48, 10)
        with torch.no_grad():
            self.depthwise.weight *= torch.linspace(-3, 2, 24).exp2().view(-1, 1, 1, 1)
        self.train()
        for _ in range(20):
            self(torch.randn(16, 3, 12, 12))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.stem(x)).relu()
        x = self.norm2(self.depthwise(x)).relu()
        x = self.norm3(self.pointwise(x)).relu()
        return self.head(self.grouped(x).relu().mean((2, 3)))


class Tied(nn.Module):
    """A head that shares its weight with an embedding; inputs by name, outputs in a dict."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(80, 32)
        nn.init.normal_(self.embedding.weight, std=0.3)  # so that no token is certain
        self.norm = nn.LayerNorm(32)
        self.mixing = nn.Linear(32, 32, bias=False)
        self.head = nn.Linear(32, 80, bias=False)
        self.head.weight = self.embedding.weight
        self.eval()

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        x = self.embedding(ids)
        return {"logits": self.head(x + self.mixing(self.norm(x)).relu())}


def vectors(count: int = 4, seed: int = 1) -> list[Tensor]:
    """Batches of correlated inputs, as real ones are."""
    derive_seed = torch.randn(48, 48, generator=torch.Generator().manual_seed(0)) / 7
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(64, 48, generator=generator) @ derive_seed for _ in range(count)]


def images(count: int = 4, seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(16, 3, 12, 12, generator=generator) for _ in range(count)]


def tokens(count: int = 4, seed: int = 1) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [{"ids": torch.randint(80, (16, 12), generator=generator)} for _ in range(count)]
