"""The 22-layer network of the shortest-paths task, chapter 3: twenty 3×3 layers of one shape, which can share templates."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from paretorch.zoo.networks.base import Network, conv, kaiming


class ResidualLayer(nn.Module):
    """x + ReLU(BN(conv(x)))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = conv(width, width, 3)
        self.bn = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.relu(self.bn(self.conv(x)))  # type: ignore[no-any-return]


class ShortestPathsCNN(Network):
    """1×1 to `width` channels, `layers` residual 3×3 convolutions, 1×1 to one logit per cell: [N, 2, H, W] → [N, H, W]."""

    leave_out: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "sparsity": ("stem", "head"),
        "precision": (),
        "sharing": ("stem", "head"),
    }

    def __init__(self, layers: int = 20, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, width, 1)
        self.layers = nn.Sequential(*(ResidualLayer(width) for _ in range(layers)))
        self.head = nn.Conv2d(width, 1, 1)
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.stem(x))).squeeze(1)  # type: ignore[no-any-return]
