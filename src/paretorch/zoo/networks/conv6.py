"""Conv-6 (Frankle & Carbin, 2019), chapter 4: the plain network of the supermask experiments.

Three stages of two 3×3 convolutions (64, 128, 256 channels) and a pooling, then linear layers of 256, 256 and 10 units.
There is no batch norm, so that a mask over random weights is all that is learned. Every layer is masked, also the head.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from paretorch.zoo.networks.base import Network, kaiming


class Conv6(Network):
    """Conv-6 for 32×32 images.

    Args:
        width: channels of the first stage.
        classes: outputs.
        channels: of the images.
    """

    leave_out: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "sparsity": (),
        "precision": (),
        "sharing": ("*",),  # no two layers have the same shape
    }

    def __init__(self, width: int = 64, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = channels
        for outputs in (width, 2 * width, 4 * width):
            for _ in range(2):
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
                inputs = outputs
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Linear(16 * inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, classes)
        )
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))  # type: ignore[no-any-return]
