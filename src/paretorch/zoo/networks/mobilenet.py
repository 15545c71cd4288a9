"""MobileNetV2 (Sandler et al., 2018) for 32×32 images, chapter 5.

Inverted residuals: expand by 1×1, filter each channel by 3×3, project by 1×1 without activation. This is the common
variant for CIFAR: the stem and the second stage keep the resolution, ReLU replaces ReLU6, and a block at stride 1 whose
number of channels changes has a 1×1 convolution with batch norm as its shortcut (in full precision in the thesis).
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from paretorch.zoo.networks.base import Network, conv, kaiming

_STAGES = (  # (expansion, channels, blocks, stride of the first block)
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """BN(project(ReLU(BN(depthwise(ReLU(BN(expand(x)))))))), plus a shortcut at stride 1."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        middle = expansion * inputs
        self.expand = conv(inputs, middle, 1)
        self.bn1 = nn.BatchNorm2d(middle)
        self.relu1 = nn.ReLU()
        self.depthwise = conv(middle, middle, 3, stride, groups=middle)
        self.bn2 = nn.BatchNorm2d(middle)
        self.relu2 = nn.ReLU()
        self.project = conv(middle, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module | None = None
        if stride == 1:
            same = inputs == outputs
            self.shortcut = nn.Identity() if same else nn.Sequential(conv(inputs, outputs, 1), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu1(self.bn1(self.expand(x)))
        out = self.relu2(self.bn2(self.depthwise(out)))
        out = self.bn3(self.project(out))
        return out if self.shortcut is None else out + self.shortcut(x)  # type: ignore[no-any-return]


class MobileNetV2(Network):
    """MobileNetV2 for 32×32 images."""

    leave_out: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "sparsity": ("*.shortcut.*", "head"),
        "precision": ("*.shortcut.*",),
        "sharing": ("stem", "stages.?.0.*", "last", "head"),
    }

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        inputs = 32
        self.stem = conv(channels, inputs, 3)
        self.bn1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU()
        stages = []
        for expansion, outputs, blocks, stride in _STAGES:
            layers = []
            for block in range(blocks):
                layers.append(InvertedResidual(inputs, outputs, expansion, stride if block == 0 else 1))
                inputs = outputs
            stages.append(nn.Sequential(*layers))
        self.stages = nn.Sequential(*stages)
        self.last = conv(inputs, 1280, 1)
        self.bn2 = nn.BatchNorm2d(1280)
        self.relu2 = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(1280, classes)
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(self.relu1(self.bn1(self.stem(x))))
        x = self.relu2(self.bn2(self.last(x)))
        return self.head(self.pool(x).flatten(1))  # type: ignore[no-any-return]
