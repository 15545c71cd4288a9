"""Networks for phones, for 32×32 images, chapter 5: MobileNetV2 (Sandler et al., 2018), ShuffleNet (Zhang et al., 2018)."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from paretorch.errors import ConfigError
from paretorch.zoo.networks import Network, conv, kaiming

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
    """MobileNetV2 in its common variant for CIFAR.

    The stem and the second stage keep the resolution, ReLU replaces ReLU6, and a block at stride 1 whose number of
    channels changes has a 1×1 convolution with batch norm as its shortcut (in full precision in the thesis).
    """

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


_STEM = 24
_CHANNELS = {1: 144, 2: 200, 3: 240, 4: 272, 8: 384}  # of the first stage, per number of groups
_BLOCKS = (4, 8, 4)


class ShuffleBlock(nn.Module):
    """Squeeze to a quarter (grouped 1×1), shuffle, filter (depthwise 3×3), widen (grouped 1×1).

    At stride 1 the input is added; at stride 2 its average pooling is concatenated.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        middle = outputs // 4
        self.groups = groups
        # As in the paper, the first layer after the stem is not grouped: it has too few inputs.
        self.squeeze = conv(inputs, middle, 1, groups=1 if inputs == _STEM else groups)
        self.bn1 = nn.BatchNorm2d(middle)
        self.relu1 = nn.ReLU()
        self.depthwise = conv(middle, middle, 3, stride, groups=middle)
        self.bn2 = nn.BatchNorm2d(middle)
        widened = outputs - inputs if stride == 2 else outputs
        self.widen = conv(middle, widened, 1, groups=groups)
        self.bn3 = nn.BatchNorm2d(widened)
        self.pool = nn.AvgPool2d(3, 2, 1) if stride == 2 else None
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out = shuffle(self.relu1(self.bn1(self.squeeze(x))), self.groups)
        out = self.bn3(self.widen(self.bn2(self.depthwise(out))))
        out = out + x if self.pool is None else torch.cat([out, self.pool(x)], 1)
        return self.relu2(out)  # type: ignore[no-any-return]


def shuffle(x: Tensor, groups: int) -> Tensor:
    """Interleave the groups: with n channels per group, channel g·n + i moves to position i·groups + g."""
    count, channels, height, width = x.shape
    return x.view(count, groups, channels // groups, height, width).transpose(1, 2).reshape(x.shape)


class ShuffleNet(Network):
    """ShuffleNet v1 with 1, 2, 3, 4 or 8 `groups`; the stem keeps the resolution, and no pooling follows it.

    Grouped 1×1 convolutions, whose groups exchange information by a fixed shuffle of the channels. The rest is as in
    the paper, with its channels for each number of groups.
    """

    leave_out: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "sparsity": ("head",),
        "precision": (),
        "sharing": ("stem", "stages.?.0.*", "head"),
    }

    def __init__(self, groups: int = 2, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        if groups not in _CHANNELS:
            raise ConfigError(f"A ShuffleNet has 1, 2, 3, 4 or 8 groups, not {groups}")
        self.stem = conv(channels, _STEM, 3)
        self.bn = nn.BatchNorm2d(_STEM)
        self.relu = nn.ReLU()
        stages = []
        inputs = _STEM
        for stage, blocks in enumerate(_BLOCKS):
            outputs = _CHANNELS[groups] * 2**stage
            layers = []
            for block in range(blocks):
                layers.append(ShuffleBlock(inputs, outputs, 2 if block == 0 else 1, groups))
                inputs = outputs
            stages.append(nn.Sequential(*layers))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(inputs, classes)
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(self.relu(self.bn(self.stem(x))))
        return self.head(self.pool(x).flatten(1))  # type: ignore[no-any-return]
