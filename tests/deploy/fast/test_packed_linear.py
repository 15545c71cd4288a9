"""The module: the same function as the dense layer, on any device; copied, saved and loaded like any other."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from paretorch.deploy.fast import PackedLinear
from tests.deploy.fast.grids import by_channel, on_the_grid


def dense(outputs: int = 20, inputs: int = 40, bias: bool = True, seed: int = 0) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias)
    with torch.no_grad():
        layer.weight.copy_(on_the_grid(by_channel(outputs, inputs, (0, 2, 4, 8), seed), seed=seed))
    return layer


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(40,), (1, 40), (3, 5, 40), (0, 40), (33, 40)])
def test_same_as_the_dense_layer(bias, shape) -> None:
    layer = dense(bias=bias)
    x = torch.randn(shape)
    assert torch.equal(PackedLinear.of(layer)(x), layer(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype) -> None:
    layer = dense().to(dtype)
    x = torch.randn(3, 40, dtype=dtype)
    got = PackedLinear.of(layer)(x)
    assert got.dtype == dtype
    assert torch.equal(got, layer(x))


def test_casting_the_module_changes_no_weight() -> None:
    packed = PackedLinear.of(dense())
    before = packed.weight
    assert torch.equal(packed.half().weight, before)


def test_gradients_reach_the_input() -> None:
    layer = dense()
    x = torch.randn(2, 40, requires_grad=True)
    twin = x.detach().clone().requires_grad_()
    PackedLinear.of(layer)(x).square().sum().backward()
    layer(twin).square().sum().backward()
    assert torch.equal(x.grad, twin.grad)


def test_autocast_decides_the_dtype() -> None:
    layer = dense()
    x = torch.randn(2, 40)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(PackedLinear.of(layer)(x), layer(x))


def test_a_wrong_width_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        PackedLinear.of(dense())(torch.randn(2, 20))


def test_copies_are_independent_and_equal() -> None:
    packed = PackedLinear.of(dense())
    twin = copy.deepcopy(packed)
    x = torch.randn(4, 40)
    assert torch.equal(twin(x), packed(x))
    twin.exponents += 1
    assert not torch.equal(twin(x), packed(x))


def test_a_state_of_other_tiles_can_be_loaded() -> None:
    zeros = nn.Linear(40, 20)
    with torch.no_grad():
        zeros.weight.copy_(on_the_grid(torch.randint(2, (20, 40)) * 3))
    source, target = PackedLinear.of(dense(seed=1)), PackedLinear.of(zeros)
    assert source.odd != target.odd
    target.load_state_dict(source.state_dict())
    x = torch.randn(4, 40)
    assert torch.equal(target(x), source(x))


def test_it_says_what_it_holds() -> None:
    assert "1 tiles of 8 bits" in repr(PackedLinear.of(dense()))
