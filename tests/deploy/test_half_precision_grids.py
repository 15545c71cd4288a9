"""Steps of weights in half precision: found again from rounded products, and never where the products would differ."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paretorch.deploy.codec.grids import HALF, read_rounded


def _products(codes: Tensor, steps: Tensor, dtype: torch.dtype) -> Tensor:
    return (codes.float() * steps).to(dtype)


@settings(max_examples=60, deadline=None)
@given(
    bits=st.integers(2, 8),
    dtype=st.sampled_from(HALF),
    exponent=st.integers(-9, 4),
    seed=st.integers(0, 999),
    axis=st.integers(0, 1),
)
def test_steps_are_found_and_give_the_weights_again(
    bits: int, dtype: torch.dtype, exponent: int, seed: int, axis: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    top = 2 ** (bits - 1)
    codes = (torch.randn(6, 200, generator=generator) * top / 3).round().clamp(-top, top - 1)
    steps = torch.rand(6, 1, generator=generator).add(0.5) * 2.0**exponent
    weights = _products(codes, steps, dtype)
    if axis:
        codes, weights = codes.T, weights.T
    grid = read_rounded(weights.float().contiguous().numpy(), dtype, (axis,))
    assert grid is not None
    assert grid.axis == axis
    assert torch.equal(torch.from_numpy(grid.codes * grid.spread).to(dtype), weights)
    if bits < 8:
        np.testing.assert_array_equal(grid.codes, codes.numpy())


def test_one_step_for_all_and_zeros_have_any() -> None:
    weights = _products(torch.tensor([[1.0, 3.0, -2.0], [0.0, 0.0, 0.0]]), torch.tensor(0.1), torch.float16)
    grid = read_rounded(weights.float().numpy(), torch.float16)
    assert grid is not None
    assert grid.axis is None
    assert grid.codes.tolist() == [[1, 3, -2], [0, 0, 0]]


def test_a_step_has_no_more_digits_than_it_needs() -> None:
    weights = _products(torch.arange(1, 9)[None], torch.tensor(1 / 3), torch.bfloat16)
    grid = read_rounded(weights.float().numpy(), torch.bfloat16, (0,))
    assert grid is not None
    assert int(grid.steps.view(np.uint32)[0]) & 0x3FFF == 0, "10 of 24 digits suffice"


@pytest.mark.parametrize("dtype", HALF)
def test_numbers_of_any_kind_have_no_steps(dtype: torch.dtype) -> None:
    weights = torch.randn(32, 100, generator=torch.Generator().manual_seed(0)).to(dtype).float().numpy()
    assert read_rounded(weights, dtype) is None
    weights[0, 0] = np.inf
    assert read_rounded(weights, dtype) is None
    assert read_rounded(weights[:0], dtype) is None
