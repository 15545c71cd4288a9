"""Networks without branches: VGG-16 and Conv-6 for 32×32 images, one for the digits of the package, one for shortest paths."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from paretorch.zoo.networks import Network, conv, kaiming

_STAGES = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))  # (multiple of the width, convolutions) per stage; a pooling follows


class _Plain(Network):
    """Convolutions, then linear layers."""

    features: nn.Sequential
    head: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))  # type: ignore[no-any-return]


class VGG16(_Plain):
    """VGG-16 (Simonyan & Zisserman, 2015), chapter 4; `width` is the number of channels of the first stage.

    13 convolutions, each followed by batch norm and ReLU, five poolings, and one linear layer in place of the three of
    the ImageNet network.
    """

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


class Conv6(_Plain):
    """Conv-6 (Frankle & Carbin, 2019), chapter 4: the network of the supermask experiments.

    Three stages of two 3×3 convolutions (64, 128, 256 channels) and a pooling, then linear layers of 256, 256 and 10
    units. There is no batch norm, so that a mask over random weights is all that is learned. Every layer is masked, also
    the head.

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


class DigitsCNN(_Plain):
    """For the 8×8 digits: six 3×3 convolutions with batch norm (three at `width` channels, three at twice that), one linear layer.

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
    """The network of the shortest-paths task, chapter 3: `layers` of one shape, which can share templates.

    1×1 to `width` channels, residual 3×3 convolutions, 1×1 to one logit per cell: [N, 2, H, W] → [N, H, W].
    """

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


class ShortestPathsSCNN(ShortestPathsCNN):
    """The shortest-paths network for training with `templates`, by default as many as 3×3 layers.

    `sharing` has the arguments of `SoftSharing` (chapter 3).
    """

    def __init__(self, layers: int = 20, width: int = 32, templates: int | None = None) -> None:
        super().__init__(layers, width)
        self.sharing: dict[str, Any] = {"templates": templates, "exclude": self.leave_out["sharing"]}
