"""Compressed rows: the same function, for any batch; copied, saved and loaded like any other module."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from paretorch.deploy.fast import SparseLinear, SparsePointwise
from paretorch.errors import ConfigError


def thinned(layer: nn.Module, keep: float = 0.1) -> nn.Module:
    with torch.no_grad():
        layer.weight.mul_(torch.rand_like(layer.weight) < keep)
    return layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(30,), (1, 30), (7, 30), (2, 3, 30), (0, 30)])
def test_linear(dtype, bias, shape) -> None:
    layer = thinned(nn.Linear(30, 50, bias=bias)).to(dtype)
    x = torch.randn(shape, dtype=dtype)
    torch.testing.assert_close(SparseLinear.of(layer)(x), layer(x))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("stride", [1, (2, 3)])
@pytest.mark.parametrize("shape", [(1, 8, 6, 5), (3, 8, 6, 5), (8, 6, 5), (0, 8, 6, 5)])
def test_pointwise_convolution(bias, stride, shape) -> None:
    layer = thinned(nn.Conv2d(8, 12, 1, stride=stride, bias=bias), 0.3)
    x = torch.randn(shape)
    got = SparsePointwise.of(layer)(x)
    torch.testing.assert_close(got, layer(x))
    assert got.is_contiguous()


def test_one_after_the_other_nothing_is_transposed() -> None:
    first, second = thinned(nn.Linear(30, 20)), thinned(nn.Linear(20, 10))
    middle = SparseLinear.of(first)(torch.randn(7, 30)).relu()
    assert middle.T.is_contiguous()
    torch.testing.assert_close(SparseLinear.of(second)(middle), second(middle))


def test_inputs_in_any_memory_format() -> None:
    linear, conv = thinned(nn.Linear(8, 5)), thinned(nn.Conv2d(8, 5, 1))
    x = torch.randn(8, 3).T
    torch.testing.assert_close(SparseLinear.of(linear)(x), linear(x))
    image = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last)
    torch.testing.assert_close(SparsePointwise.of(conv)(image), conv(image))


@pytest.mark.parametrize(
    "conv", [nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1, groups=2), nn.Conv2d(4, 4, 1, padding=1)], ids=str
)
def test_other_convolutions_are_refused(conv) -> None:
    with pytest.raises(ConfigError, match="1 × 1"):
        SparsePointwise.of(conv)


def test_a_weight_of_zeros() -> None:
    layer = thinned(nn.Linear(6, 4), 0.0)
    torch.testing.assert_close(SparseLinear.of(layer)(torch.randn(3, 6)), layer.bias.expand(3, 4))


def test_a_state_with_another_number_of_values_can_be_loaded() -> None:
    source, target = SparseLinear.of(thinned(nn.Linear(30, 20), 0.5)), SparseLinear.of(thinned(nn.Linear(30, 20), 0.1))
    x = torch.randn(4, 30)
    target(x)
    target.load_state_dict(source.state_dict())
    assert torch.equal(target(x), source(x))


def test_what_is_loaded_in_place_is_used() -> None:
    layer = SparseLinear.of(thinned(nn.Linear(30, 20), 0.5))
    x = torch.randn(4, 30)
    layer(x)
    state = {key: value.clone() for key, value in layer.state_dict().items()}
    state["values"] *= 2
    state["bias"] *= 2
    twice = 2 * layer(x)
    layer.load_state_dict(state)
    torch.testing.assert_close(layer(x), twice)


def test_copies_share_nothing() -> None:
    layer = SparseLinear.of(thinned(nn.Linear(30, 20), 0.5))
    x = torch.randn(4, 30)
    before = layer(x)
    twin = copy.deepcopy(layer)
    twin.values.zero_()
    torch.testing.assert_close(twin(x), layer.bias.expand(4, 20))
    assert torch.equal(layer(x), before)
    assert torch.equal(layer.double().values, layer.values)
    torch.testing.assert_close(layer(x.double()).float(), before)  # as near as fp32 is


def test_a_weight_of_other_dimensions_is_refused() -> None:
    with pytest.raises(ConfigError, match="two-dimensional"):
        SparseLinear(torch.zeros(2, 2, 2))


def test_it_says_what_it_holds() -> None:
    layer = nn.Linear(4, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]))
    assert "75.0% zeros" in repr(SparseLinear.of(layer))
