"""Groups: `expand` and `reduce` are adjoint, sizes count every weight once, edges may be ragged."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paretorch.core.groups import Grouping, grouping


@st.composite
def groupings(draw: st.DrawFn) -> Grouping:
    shape = draw(st.lists(st.integers(1, 6), min_size=2, max_size=4))
    kind = draw(st.sampled_from(["weight", "channel", "layer", "network", "block", "callable"]))
    if kind == "block":
        rank = draw(st.integers(1, len(shape)))
        group = tuple(draw(st.integers(1, n)) for n in shape[:rank])
    elif kind == "callable":
        every = draw(st.integers(1, 7))

        def group(name: str, weight: Tensor) -> Tensor:
            return torch.arange(weight.numel()).view(weight.shape) % every * 10 - 5
    else:
        group = kind
    return grouping(group, "layer", torch.zeros(shape), draw(st.integers(0, 1)))


@settings(max_examples=80, deadline=None)
@given(one=groupings())
def test_expand_and_reduce_are_adjoint(one: Grouping) -> None:
    generator = torch.Generator().manual_seed(0)
    on_grid, on_weight = torch.randn(one.grid, generator=generator), torch.randn(one.shape, generator=generator)
    left = (one.expand(on_grid).expand(one.shape) * on_weight).sum()
    right = (on_grid * one.reduce(on_weight)).sum()
    torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)
    assert one.reduce(on_weight).shape == one.grid


@settings(max_examples=80, deadline=None)
@given(one=groupings())
def test_sizes_count_every_weight_once(one: Grouping) -> None:
    sizes = torch.as_tensor(one.sizes).expand(one.grid)
    assert float(sizes.sum()) == math.prod(one.shape)
    assert torch.equal(sizes, one.reduce(torch.ones(one.shape)))
    assert float(sizes.min()) >= 1


def test_blocks_at_ragged_edges() -> None:
    one = grouping((2, 3), "layer", torch.zeros(3, 4, 2), 0)
    assert one.grid == (2, 2, 1)
    assert one.sizes.squeeze().tolist() == [[12.0, 4.0], [6.0, 2.0]]
    spread = one.expand(torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(one.grid))
    assert spread[..., 1].tolist() == [[1, 1, 1, 2], [1, 1, 1, 2], [3, 3, 3, 4]]


@pytest.mark.parametrize("axis", [0, 1])
def test_channels_are_slices_of_the_channel_axis(axis: int) -> None:
    one = grouping("channel", "layer", torch.zeros(4, 5, 3), axis)
    assert one.grid == ((4, 1, 1), (1, 5, 1))[axis]
    assert one.sizes == (15.0, 12.0)[axis]


def test_equal_labels_share() -> None:
    labels = torch.tensor([[7, -2], [7, 100]])
    one = grouping(lambda name, weight: labels, "layer", torch.zeros(2, 2), 0)
    assert one.grid == (3,)
    assert one.sizes.tolist() == [1.0, 2.0, 1.0]
    assert one.expand(torch.tensor([1.0, 2.0, 3.0])).tolist() == [[2.0, 1.0], [2.0, 3.0]]


def test_a_callable_sees_the_name_and_the_weight() -> None:
    seen = []

    def labels(name: str, weight: Tensor) -> Tensor:
        seen.append((name, tuple(weight.shape), weight.requires_grad))
        return torch.zeros(weight.shape, dtype=torch.int64)

    grouping(labels, "body.0.weight", torch.zeros(2, 3, requires_grad=True), 0)
    assert seen == [("body.0.weight", (2, 3), False)]
