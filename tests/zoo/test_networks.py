"""Image networks: parameter counts derived by hand, shapes, initialisation, compilation."""

import itertools

import pytest
import torch
from torch import nn

from paretorch.errors import ConfigError
from paretorch.zoo import build
from paretorch.zoo.networks.mobile import shuffle


def _conv(inputs: int, outputs: int, kernel: int, groups: int = 1) -> int:
    """Weights of a convolution and of the batch norm after it."""
    return inputs // groups * outputs * kernel**2 + 2 * outputs


def _resnet(n: int) -> int:
    total = _conv(3, 16, 3)
    total += n * 2 * _conv(16, 16, 3)
    for inputs, outputs in ((16, 32), (32, 64)):
        total += _conv(inputs, outputs, 3) + (2 * n - 1) * _conv(outputs, outputs, 3)
        total += _conv(inputs, outputs, 1)  # the shortcut
    return total + 64 * 10 + 10


def _vgg() -> int:
    channels = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
    return sum(_conv(a, b, 3) for a, b in itertools.pairwise(channels)) + 512 * 10 + 10


def _wrn(n: int, k: int) -> int:
    total, inputs = 3 * 16 * 9, 16
    for outputs in (16 * k, 32 * k, 64 * k):
        for _ in range(n):  # a norm of the inputs, a convolution, a norm, a convolution
            total += 2 * inputs + inputs * outputs * 9 + 2 * outputs + outputs * outputs * 9
            total += inputs * outputs if inputs != outputs else 0
            inputs = outputs
    return total + 2 * inputs + inputs * 10 + 10


def _mobilenet() -> int:
    total, inputs = _conv(3, 32, 3), 32
    stages = ((1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1))
    for expansion, outputs, blocks in stages:
        for block in range(blocks):
            middle = expansion * inputs
            total += _conv(inputs, middle, 1) + _conv(middle, middle, 3, middle) + _conv(middle, outputs, 1)
            if block == 0 and outputs in (16, 24, 96, 320):  # stride 1, other channels
                total += _conv(inputs, outputs, 1)
            inputs = outputs
    return total + _conv(320, 1280, 1) + 1280 * 10 + 10


def _shufflenet() -> int:
    total, inputs = _conv(3, 24, 3), 24
    for outputs, blocks in ((200, 4), (400, 8), (800, 4)):
        for block in range(blocks):
            middle = outputs // 4
            total += _conv(inputs, middle, 1, 1 if inputs == 24 else 2) + _conv(middle, middle, 3, middle)
            total += _conv(middle, outputs - inputs if block == 0 else outputs, 1, 2)
            inputs = outputs
    return total + 800 * 10 + 10


_CONV6 = sum((a * 9 + 1) * b for a, b in ((3, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256)))
_COUNTS = {
    "resnet20": _resnet(3),
    "resnet32": _resnet(5),
    "resnet56": _resnet(9),
    "vgg16": _vgg(),
    "wrn-28-10": _wrn(4, 10),
    "wrn-28-4": _wrn(4, 4),
    "conv6": _CONV6 + 4097 * 256 + 257 * 256 + 257 * 10,
    "mobilenetv2": _mobilenet(),
    "shufflenet": _shufflenet(),
    "resnet18": 11_689_512,  # torchvision's
    "resnet50": 25_557_032,
    "wrn-50-2": 68_883_240,
    "shortest-paths-cnn": 3 * 32 + 20 * _conv(32, 32, 3) + 33,
    "digits-cnn": _conv(1, 20, 3) + 2 * _conv(20, 20, 3) + _conv(20, 40, 3) + 2 * _conv(40, 40, 3) + 161 * 10,
    "dcgan-generator": 16 * (100 * 256 + 256 * 128 + 128 * 64 + 64 * 3) + 2 * (256 + 128 + 64),
    "dcgan-discriminator": 16 * (3 * 64 + 64 * 128 + 128 * 256 + 256) + 2 * (128 + 256),
}


@pytest.mark.parametrize("name", _COUNTS)
def test_parameter_counts(name: str) -> None:
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in build(name).parameters()) == _COUNTS[name]


def test_counts_are_the_published_ones() -> None:
    assert _COUNTS["resnet20"] == 272_474
    assert round(_COUNTS["wrn-28-10"] / 1e6, 1) == 36.5
    assert round(_COUNTS["vgg16"] / 1e6, 1) == 14.7
    assert _COUNTS["mobilenetv2"] == 2_296_922
    assert 30_000 < _COUNTS["digits-cnn"] < 60_000


# name, options that make it small, input shape, output shape
_SMALL = [
    ("resnet20", {"width": 4}, (2, 3, 32, 32), (2, 10)),
    ("vgg16", {"width": 4, "classes": 100}, (2, 3, 32, 32), (2, 100)),
    ("wrn-10-1", {"dropout": 0.3}, (2, 3, 32, 32), (2, 10)),
    ("conv6", {"width": 4}, (2, 3, 32, 32), (2, 10)),
    ("mobilenetv2", {}, (2, 3, 32, 32), (2, 10)),
    ("shufflenet", {"groups": 3}, (2, 3, 32, 32), (2, 10)),
    ("resnet18", {"classes": 7, "activation": "relu6"}, (2, 3, 64, 64), (2, 7)),
    ("resnet50", {"classes": 7}, (2, 3, 64, 64), (2, 7)),
    ("shortest-paths-cnn", {"layers": 3, "width": 4}, (2, 2, 9, 11), (2, 9, 11)),
    ("digits-cnn", {}, (2, 1, 8, 8), (2, 10)),
    ("dcgan-generator", {"width": 4}, (2, 100), (2, 3, 32, 32)),
    ("dcgan-discriminator", {"width": 4}, (2, 3, 32, 32), (2,)),
]


@pytest.mark.parametrize(("name", "options", "inputs", "outputs"), _SMALL)
def test_shapes_and_gradients(name: str, options: dict[str, object], inputs: tuple[int, ...], outputs: tuple) -> None:
    torch.manual_seed(0)
    network = build(name, **options)
    x = torch.randn(inputs)
    untouched = x.clone()
    out = network(x)
    assert out.shape == outputs
    assert torch.equal(x, untouched), "no activation works in place on its input"
    out.square().sum().backward()
    for path, parameter in network.named_parameters():
        assert parameter.grad is not None, path
        assert parameter.grad.isfinite().all(), path


@pytest.mark.parametrize(("name", "options", "inputs", "outputs"), _SMALL)
def test_compiles_to_one_graph(name: str, options: dict[str, object], inputs: tuple[int, ...], outputs: tuple) -> None:
    torch.manual_seed(0)
    network = build(name, **options).eval()
    x = torch.randn(inputs)
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), network(x))


@pytest.mark.parametrize("name", ["resnet20", "wrn-10-1", "conv6", "shufflenet"])
def test_kaiming_initialisation(name: str) -> None:
    torch.manual_seed(0)
    for layer in build(name).modules():
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.weight.numel() > 2000:
            variance = 2 / layer.weight[0].numel()
            assert float(layer.weight.detach().var()) == pytest.approx(variance, rel=0.25)


def test_signals_keep_their_size_through_conv6() -> None:
    torch.manual_seed(0)
    out = build("conv6")(torch.randn(8, 3, 32, 32))
    assert 0.1 < float(out.detach().std()) < 10


def test_imagenet_names_are_torchvisions() -> None:
    with torch.device("meta"):
        keys = set(build("resnet50").state_dict())
    assert {
        "conv1.weight",
        "bn1.running_mean",
        "layer1.0.downsample.0.weight",
        "layer4.2.conv3.weight",
        "fc.bias",
    } <= keys
    assert len(keys) == 320


def test_wrong_sizes() -> None:
    with pytest.raises(ConfigError, match="groups"):
        build("shufflenet", groups=5)
    with pytest.raises(ConfigError, match="relu6"):
        build("resnet18", activation="tanh")


def test_shuffle_interleaves_the_groups() -> None:
    x = torch.arange(6.0).view(1, 6, 1, 1)
    assert shuffle(x, 2).flatten().tolist() == [0, 3, 1, 4, 2, 5]


def test_wide_resnet_without_shortcuts_is_the_identity_plus_a_branch() -> None:
    torch.manual_seed(0)
    block = build("wrn-16-1").stages[0][1].eval()
    nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 16, 8, 8)
    assert torch.equal(block(x), x)
