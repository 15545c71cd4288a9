"""ResNet-18, ResNet-50 and WRN-50-2 for 224×224 images (He et al., 2016; Zagoruyko & Komodakis, 2016).

Parameter names, shapes and the place of the stride (the 3×3 convolution) are torchvision's, so its weights load here.
With `activation="relu6"` all activations are in [0, 6], as chapter 5 assumes for quantized activations.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from paretorch.errors import ConfigError
from paretorch.zoo.networks.base import Network, conv, kaiming

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
    """A ResNet for 224×224 images.

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
