"""VGG-16 for 32×32 images (Simonyan & Zisserman, 2015), chapter 4.

13 convolutions, each followed by batch norm and ReLU, five poolings, and one linear layer in place of the three of the
ImageNet network.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from paretorch.zoo.networks.base import Network, conv, kaiming

_STAGES = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))  # (multiple of the width, convolutions) per stage; a pooling follows


class VGG16(Network):
    """VGG-16; `width` is the number of channels of the first stage."""

    leave_out: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "sparsity": ("head",),
        "precision": (),
        # the first convolution of a stage has its own shape, except in the fifth stage, which is like the fourth
        "sharing": ("features.0", "features.7", "features.14", "features.24", "head"),
    }

    def __init__(self, width: int = 64, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = channels
        for multiple, count in _STAGES:
            for _ in range(count):
                layers += [conv(inputs, width * multiple, 3), nn.BatchNorm2d(width * multiple), nn.ReLU()]
                inputs = width * multiple
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))  # type: ignore[no-any-return]
