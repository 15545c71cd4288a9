"""Small networks whose channels pass something on their way from one convolution to the next."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class Net(nn.Module):
    """Two convolutions, with something between them, and a head; `x`: a batch for it."""

    def __init__(self, between: nn.Module, dims: int = 2) -> None:
        super().__init__()
        self.one, self.between, self.two = CONVS[dims](3, 12, 1), between, CONVS[dims](12, 10, 1)
        self.head = nn.Linear(10, 4)
        self.x = torch.randn(4, 3, *[5] * dims, generator=torch.Generator().manual_seed(1))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(F.relu(self.two(self.between(self.one(x)))).flatten(2).mean(2))
        return logits


class Reused(Net):
    """The same slopes behind two convolutions, whose channels so go together."""

    def __init__(self) -> None:
        super().__init__(nn.PReLU(12))
        self.more = nn.Conv2d(12, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.between(self.more(self.between(self.one(x))))
        logits: Tensor = self.head(F.relu(self.two(x)).mean((2, 3)))
        return logits


class Branches(Net):
    """One group norm over two branches; the second of its four groups has channels of both."""

    def __init__(self) -> None:
        super().__init__(nn.GroupNorm(4, 20))
        self.other, self.two = nn.Conv2d(3, 8, 1), nn.Conv2d(20, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.other(x), self.one(x)], 1)
        logits: Tensor = self.head(F.relu(self.two(F.relu(self.between(both)))).mean((2, 3)))
        return logits


class Own(nn.Module):
    """A function, called by a module that holds nothing."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Again(nn.Module):
    """A module that is passed twice."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(F.relu(self.inner(x)))
        return out
