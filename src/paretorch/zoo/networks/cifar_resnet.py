"""ResNet-20/32/56 for 32×32 images (He et al., 2016), chapters 4 and 5.

Three stages of n basic blocks with 16, 32 and 64 channels, depth 6n + 2. The two shortcuts that change the shape are
1×1 convolutions with batch norm (the thesis' variant), not the parameter-free padding of the original.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from paretorch.errors import ConfigError
from paretorch.zoo.networks.base import Network, conv, kaiming


class BasicBlock(nn.Module):
    """ReLU(shortcut(x) + BN(conv(ReLU(BN(conv(x))))))."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = conv(outputs, outputs, 3)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu2(out + self.shortcut(x))  # type: ignore[no-any-return]


class CifarResNet(Network):
    """A ResNet for 32×32 images.

    Args:
        depth: 6n + 2 layers.
        width: channels of the first stage.
        classes: outputs.
        channels: of the images.
    """

    leave_out: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "sparsity": ("*.shortcut.*", "head"),
        "precision": ("*.shortcut.*",),
        "sharing": ("stem", "stages.?.0.*", "head"),
    }

    def __init__(self, depth: int = 20, width: int = 16, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ConfigError(f"A CIFAR ResNet has 6n + 2 layers (8, 14, 20, 32, 56, ...), not {depth}")
        blocks = (depth - 2) // 6
        self.stem = conv(channels, width, 3)
        self.bn = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        stages = []
        inputs = width
        for stage in range(3):
            outputs = width * 2**stage
            layers = []
            for block in range(blocks):
                layers.append(BasicBlock(inputs, outputs, 2 if stage > 0 and block == 0 else 1))
                inputs = outputs
            stages.append(nn.Sequential(*layers))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(inputs, classes)
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn(self.stem(x)))
        x = self.stages(x)
        return self.head(self.pool(x).flatten(1))  # type: ignore[no-any-return]
