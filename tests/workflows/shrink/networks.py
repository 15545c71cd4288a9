"""Small trained networks, and batches for them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def images(count: int = 12, seed: int = 0) -> list[Tensor]:
    """Batches whose brightness and stripes say the class."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        x = 0.5 * torch.randn(16, 3, 8, 8, generator=generator)
        kind = torch.randint(0, 4, (16,), generator=generator)
        x[kind % 2 == 1] += 1.0
        x[kind >= 2, :, ::2] -= 1.0
        found.append(x)
    return found


def tokens(count: int = 12, seed: int = 0) -> list[Tensor]:
    """Batches of counting sequences with some noise."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(0, 32, (count, 8, 1), generator=generator)
    return list((start + torch.arange(12) + torch.randint(0, 2, (count, 8, 12), generator=generator)) % 32)


def convnet() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(128, 4),
    )


class Output(NamedTuple):
    """What a language model gives beside its logits."""

    logits: Tensor
    states: Tensor


class TinyLanguageModel(nn.Module):
    """An embedding tied to the head, and one block of attention."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(32, 32, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Output:
        states = self.block(self.embedding(input_ids))
        return Output(self.head(states), states)


def fitted(model: nn.Module, batches: list[Any], targets: list[Tensor]) -> nn.Module:
    """The model, trained for a moment."""
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    model.train()
    for _ in range(4):
        for x, y in zip(batches, targets, strict=True):
            outputs = model(x)
            logits = outputs if isinstance(outputs, Tensor) else outputs.logits
            F.cross_entropy(logits.flatten(0, -2), y.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


def trained_convnet() -> nn.Module:
    batches = images(16, seed=5)
    kinds = [((x.mean((1, 2, 3)) > 0).long() + 2 * (x[:, :, ::2].mean((1, 2, 3)) < -0.2).long()) for x in batches]
    return fitted(convnet(), batches, kinds)


def trained_language_model(tied: bool = True) -> nn.Module:
    torch.manual_seed(0)
    batches = tokens(24, seed=5)
    return fitted(TinyLanguageModel(tied), batches, [(x + 1) % 32 for x in batches])
