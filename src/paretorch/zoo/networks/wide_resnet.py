"""Wide ResNet WRN-d-k for 32×32 images (Zagoruyko & Komodakis, 2016), chapters 3 and 6.

Pre-activation blocks, three stages of (d − 4)/6 blocks with 16k, 32k and 64k channels. The shortcut of a block that
changes the shape is a bare 1×1 convolution of the block's activated input.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from paretorch.errors import ConfigError
from paretorch.zoo.networks.base import Network, conv, kaiming


class PreActivationBlock(nn.Module):
    """a = ReLU(BN(x));  y = conv(dropout(ReLU(BN(conv(a))))) + (x, or shortcut(a) if the shape changes)."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU()
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.ReLU()
        self.dropout = nn.Dropout(dropout)
        self.conv2 = conv(outputs, outputs, 3)
        self.shortcut = conv(inputs, outputs, 1, stride) if stride != 1 or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        active = self.relu1(self.bn1(x))
        out = self.dropout(self.relu2(self.bn2(self.conv1(active))))
        skip = x if self.shortcut is None else self.shortcut(active)
        return self.conv2(out) + skip  # type: ignore[no-any-return]


class WideResNet(Network):
    """WRN-`depth`-`widen` for 32×32 images.

    Args:
        depth: 6n + 4 layers.
        widen: factor of the channels.
        dropout: rate between the two convolutions of a block.
        classes: outputs.
        channels: of the images.
    """

    leave_out: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "sparsity": ("*.shortcut", "head"),
        "precision": (),
        "sharing": ("stem", "stages.?.0.*", "head"),
    }

    def __init__(
        self, depth: int = 28, widen: int = 10, dropout: float = 0.0, classes: int = 10, channels: int = 3
    ) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ConfigError(f"A Wide ResNet has 6n + 4 layers (10, 16, 22, 28, 40, ...), not {depth}")
        if widen < 1:
            raise ConfigError(f"A Wide ResNet's widen factor is at least 1, not {widen}")
        blocks = (depth - 4) // 6
        self.stem = conv(channels, 16, 3)
        stages = []
        inputs = 16
        for stage in range(3):
            outputs = 16 * widen * 2**stage
            layers = []
            for block in range(blocks):
                layers.append(PreActivationBlock(inputs, outputs, 2 if stage > 0 and block == 0 else 1, dropout))
                inputs = outputs
            stages.append(nn.Sequential(*layers))
        self.stages = nn.Sequential(*stages)
        self.bn = nn.BatchNorm2d(inputs)
        self.relu = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(inputs, classes)
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn(self.stages(self.stem(x))))
        return self.head(self.pool(x).flatten(1))  # type: ignore[no-any-return]
