"""Residual networks: ResNet-20/32/56 and WRN-d-k for 32×32 images, ResNet-18/50 and WRN-50-2 for 224×224 images.

He et al. (2016), chapters 4 and 5; Zagoruyko & Komodakis (2016), chapters 3 and 6.

SWRN-d-w-k and SWRN-50-2 (chapter 3) are networks whose layers share templates. They have the layers of the networks that they
derive from; `sharing` has the arguments of `SoftSharing` for their training:

    model = zoo.build("swrn-28-10-2")
    plan = compress(model, SoftSharing(**model.sharing), steps=…)

SWRN-d-w-k: in each stage, all convolutions except those of the first block share k templates. Without k there are
(d − 10)/3, as many as layers. SWRN-50-2 has twelve groups, since the reducing, preserving and expanding convolutions of a
stage differ in shape, and as many templates as layers.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from paretorch.errors import ConfigError
from paretorch.zoo.networks import Network, conv, kaiming


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
    """ResNet-20/32/56 for 32×32 images: three stages of n basic blocks with 16, 32 and 64 channels, depth 6n + 2.

    The two shortcuts that change the shape are 1×1 convolutions with batch norm (the thesis' variant), not the
    parameter-free padding of the original.

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


_BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
_ACTIVATIONS = {"relu": nn.ReLU, "relu6": nn.ReLU6}


class Basic(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, activation: str) -> None:
        super().__init__()
        self.conv1 = conv(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = _ACTIVATIONS[activation]()
        self.conv2 = conv(width, outputs, 3)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu2 = _ACTIVATIONS[activation]()
        self.downsample = _downsample(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu2(out + (x if self.downsample is None else self.downsample(x)))  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """1×1 to `width` channels, 3×3, 1×1 to `outputs` channels, and a shortcut."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, activation: str) -> None:
        super().__init__()
        self.conv1 = conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = _ACTIVATIONS[activation]()
        self.conv2 = conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = _ACTIVATIONS[activation]()
        self.conv3 = conv(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu3 = _ACTIVATIONS[activation]()
        self.downsample = _downsample(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu1(self.bn1(self.conv1(x)))
        out = self.relu2(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu3(out + (x if self.downsample is None else self.downsample(x)))  # type: ignore[no-any-return]


class ImageNetResNet(Network):
    """ResNet-18, ResNet-50 and WRN-50-2 for 224×224 images.

    Parameter names, shapes and the place of the stride (the 3×3 convolution) are torchvision's, so its weights load
    here. With `activation="relu6"` all activations are in [0, 6], as chapter 5 assumes for quantized activations.

    Args:
        depth: 18 (basic blocks) or 50 (bottlenecks).
        widen: factor of the inner width of the blocks.
        classes: outputs.
        activation: "relu" or "relu6".
    """

    leave_out: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "sparsity": ("*.downsample.*", "fc"),
        "precision": (),
        "sharing": ("conv1", "layer?.0.*", "fc"),
    }

    def __init__(self, depth: int = 50, widen: int = 1, classes: int = 1000, activation: str = "relu") -> None:
        super().__init__()
        if depth not in _BLOCKS:
            raise ConfigError(f"An ImageNet ResNet here has 18 or 50 layers, not {depth}")
        if activation not in _ACTIVATIONS:
            raise ConfigError(f"The activation is 'relu' or 'relu6', not {activation!r}")
        block, expansion = (Basic, 1) if depth == 18 else (Bottleneck, 4)
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = _ACTIVATIONS[activation]()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = 64
        stages = []
        for stage, blocks in enumerate(_BLOCKS[depth]):
            width = 64 * 2**stage
            layers = []
            for index in range(blocks):
                stride = 2 if stage > 0 and index == 0 else 1
                layers.append(block(inputs, width * widen, width * expansion, stride, activation))
                inputs = width * expansion
            stages.append(nn.Sequential(*layers))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)
        kaiming(self, "fan_out")
        self.fc.reset_parameters()  # fan_out, right for the convolutions, would be wrong for the linear layer

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))  # type: ignore[no-any-return]


def _downsample(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class SWRN(WideResNet):
    """WRN-`depth`-`widen` for training with `templates` per stage. `dropout` is between the convolutions of a block."""

    def __init__(
        self,
        depth: int = 28,
        widen: int = 10,
        templates: int | None = None,
        dropout: float = 0.0,
        classes: int = 10,
        channels: int = 3,
    ) -> None:
        if depth < 16:
            raise ConfigError(f"An SWRN has 16, 22, 28, 40, ... layers, not {depth}: with fewer, no layers can share")
        if templates is not None and templates < 1:
            raise ConfigError(f"An SWRN has 1 or more templates per stage, not {templates}")
        super().__init__(depth, widen, dropout, classes, channels)
        self.sharing: dict[str, Any] = {"templates": templates, "exclude": self.leave_out["sharing"]}


class ImageNetSWRN(ImageNetResNet):
    """SWRN-50-`widen` for 224×224 images."""

    def __init__(self, widen: int = 2, classes: int = 1000, activation: str = "relu") -> None:
        super().__init__(50, widen, classes, activation)
        self.sharing: dict[str, Any] = {"templates": None, "exclude": self.leave_out["sharing"]}
