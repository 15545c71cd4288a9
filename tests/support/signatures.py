"""Networks with one body and different signatures, for which every function must do the same."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Plain(nn.Module):
    """One tensor in, one out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.act = nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()
        self.second, self.head = nn.Conv2d(6, 8, 3, padding=1), nn.Linear(8, 3)

    def body(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.second(self.act(self.norm(self.first(x)))))
        out: Tensor = self.head(hidden.mean((2, 3)))
        return out

    def forward(self, x: Tensor) -> Any:
        return self.body(x)


class Pair(NamedTuple):
    scores: Tensor
    doubled: Tensor


@dataclass
class Found:
    logits: Tensor
    note: str = "no tensor"


class Two(Plain):
    """Two tensors in, two out, the second without effect on the first if it is zero."""

    def forward(self, x: Tensor, shift: Tensor) -> Any:
        out = self.body(x) + shift[:, None]
        return Pair(out, 2 * out)


class Named(Plain):
    """By keyword alone, with an option, and a dict of results."""

    def forward(self, *, pixels: Tensor, scale: float = 1.0, labels: Tensor | None = None) -> Any:
        found = {"logits": self.body(pixels) * scale}
        return found if labels is None else {"loss": nn.functional.cross_entropy(found["logits"], labels), **found}


class Nested(Plain):
    """One argument that is a dict of tuples, and a dataclass of results."""

    def forward(self, given: dict[str, tuple[Tensor, Tensor]]) -> Any:
        x, shift = given["pair"]
        return Found(self.body(x) + shift[:, None])


X = torch.linspace(-1, 1, 4 * 2 * 5 * 5).view(4, 2, 5, 5)
ZERO = torch.zeros(4)
SIGNATURES: list[tuple[type[Plain], Any]] = [
    (Plain, X),
    (Plain, (X,)),
    (Two, (X, ZERO)),
    (Two, [X, ZERO]),
    (Two, {"x": X, "shift": ZERO}),
    (Named, {"pixels": X, "scale": 1.0}),
    (Nested, ({"pair": (X, ZERO)},)),
]
