"""Packing is exact, as small as it says, and refuses what it cannot hold."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import paretorch as pt
from paretorch.deploy.fast.packing import Order, pack, unpack
from paretorch.errors import ConfigError
from tests.deploy.fast.grids import by_block, by_channel, on_the_grid

TILE = (32, 128)


@settings(max_examples=40, deadline=None)
@given(
    outputs=st.integers(1, 80),
    inputs=st.integers(1, 300),
    allowed=st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 8]), min_size=1, max_size=4, unique=True),
    exponent=st.integers(-60, 60),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    seed=st.integers(0, 99),
)
def test_channels_of_any_precisions_are_restored_exactly(outputs, inputs, allowed, exponent, dtype, seed) -> None:
    weight = on_the_grid(by_channel(outputs, inputs, tuple(allowed), seed), 2.0**exponent, seed).to(dtype)
    assert torch.equal(unpack(pack(weight, *TILE)).to(dtype), weight)


@settings(max_examples=30, deadline=None)
@given(
    outputs=st.integers(1, 100),
    inputs=st.integers(1, 400),
    allowed=st.lists(st.sampled_from([0, 2, 4, 8]), min_size=1, max_size=4, unique=True),
    seed=st.integers(0, 99),
)
def test_blocks_of_a_tile_are_restored_exactly(outputs, inputs, allowed, seed) -> None:
    weight = on_the_grid(by_block(outputs, inputs, TILE, tuple(allowed), seed), seed=seed)
    assert torch.equal(unpack(pack(weight, *TILE)), weight)


@settings(max_examples=30, deadline=None)
@given(outputs=st.integers(1, 40), inputs=st.integers(1, 200), bits=st.sampled_from([1, 3, 7]), seed=st.integers(0, 99))
def test_zeros_among_the_weights_take_one_more_bit(outputs, inputs, bits, seed) -> None:
    precisions = torch.randint(2, (outputs, inputs), generator=torch.Generator().manual_seed(seed)) * bits
    packed = pack(on_the_grid(precisions, seed=seed), *TILE)
    assert torch.equal(unpack(packed), on_the_grid(precisions, seed=seed))
    if not packed.odd:
        assert sum(len(w) for w in packed.words[: {1: 2, 3: 1, 7: 0}[bits]]) == 0, "no wider than bits + 1"


@pytest.mark.parametrize(("bits", "per_byte"), [(2, 4), (4, 2), (8, 1)])
def test_bytes_follow_from_the_bits_per_weight(bits, per_byte) -> None:
    weight = on_the_grid(torch.full((64, 256), bits))
    assert pack(weight, *TILE).bytes == 64 * 256 // per_byte


def test_channels_are_sorted_so_that_each_costs_its_own_bits() -> None:
    bits = torch.tensor([8, 2, 4, 2] * 32)[:, None].expand(-1, 128)
    packed = pack(on_the_grid(bits), *TILE)
    assert [len(words) for words in packed.words] == [1, 1, 2]
    assert packed.bytes == int(bits.sum()) // 8
    assert packed.order is Order.REGULAR


def test_tiles_of_zeros_are_left_out() -> None:
    bits = torch.full((64, 256), 4)
    bits[:32, 128:] = 0
    packed = pack(on_the_grid(bits), *TILE)
    assert packed.bytes == 3 * 32 * 128 // 2
    assert torch.equal(unpack(packed), on_the_grid(bits))
    assert pack(torch.zeros(5, 7)).bytes == 0
    assert torch.equal(unpack(pack(torch.zeros(5, 7))), torch.zeros(5, 7))


def test_blocks_that_leave_gaps_are_not_regular() -> None:
    bits = torch.full((32, 384), 4)
    bits[:, :128] = 0
    assert pack(on_the_grid(bits), *TILE).order is Order.FREE
    assert pack(on_the_grid(bits)[:, 128:], *TILE).order is Order.FULL


@pytest.mark.parametrize(
    ("weight", "why"),
    [
        (torch.randn(8, 8, generator=torch.Generator().manual_seed(0)), "not on a grid"),
        (torch.tensor([[1.0, float("nan")]]), "finite"),
        (torch.tensor([[1.0 + 2.0**-40]], dtype=torch.float64), "exact in float32"),
        (torch.ones(3), "two-dimensional"),
        (torch.ones(0, 3), "two-dimensional"),
        (torch.ones(2, 2, dtype=torch.int32), "floating"),
        (torch.tensor([[255.0, 0.0]]), "not on a grid"),
    ],
)
def test_refusals_say_why(weight, why) -> None:
    with pytest.raises(ConfigError, match=why):
        pack(weight)


@pytest.mark.parametrize("methods", ["bits", "bits and zeros"])
def test_what_training_leaves_can_be_packed(methods) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 10))
    chosen = [pt.SMOL(target_bits=3.0, allowed_bits=(2, 4, 8), group="channel")]
    if methods == "bits and zeros":
        chosen.append(pt.ContinuousSparsification(target=0.5, group="channel"))
    plan = pt.compress(model, *chosen, steps=20)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05)
    for _ in range(20):
        model(torch.randn(8, 40)).square().mean().backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    plan.harden(optimizer)
    weight = plan.finalize()[0].weight.detach()
    packed = pack(weight, *TILE)
    assert torch.equal(unpack(packed), weight)
    assert packed.odd
