"""A small convolutional network for the 8×8 digits of the package, used by the demo and the examples."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from paretorch.zoo.networks.base import Network, conv, kaiming


class DigitsCNN(Network):
    """Six 3×3 convolutions with batch norm (three at `width` channels, three at twice that), one linear layer.

    There are three per stage, so that two of each stage have the same shape and can share weights.
    """

    leave_out: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "sparsity": ("head",),
        "precision": (),
        "sharing": ("features.0", "features.10", "head"),
    }

    def __init__(self, width: int = 20, classes: int = 10, channels: int = 1) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = channels
        for outputs in (width, 2 * width):
            for _ in range(3):
                layers += [conv(inputs, outputs, 3), nn.BatchNorm2d(outputs), nn.ReLU()]
                inputs = outputs
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(4 * inputs, classes)
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))  # type: ignore[no-any-return]
