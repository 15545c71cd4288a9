"""Steps and codes read off values: exact to the last bit, also from rounded products, and only if they exist."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paretorch.deploy.codec.grids import HALF, Grid, read_binary, read_grid, read_rounded
from paretorch.methods.precision.grid import quantize

_STEPS = st.floats(2.0**-20, 2.0**20, width=32)


def _values(grid: Grid) -> np.ndarray:
    return grid.codes.astype(np.float32) * grid.spread


@settings(max_examples=60, deadline=None)
@given(bits=st.integers(2, 8), step=_STEPS, seed=st.integers(0, 2**31))
def test_multiples_of_any_step_are_found(bits: int, step: float, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (6, 5))
    values = codes.astype(np.float32) * np.float32(step)
    grid = read_grid(values)
    assert grid is not None
    assert grid.bits <= next(width for width in (2, 4, 8) if width >= bits)
    np.testing.assert_array_equal(_values(grid), values)


@settings(max_examples=30, deadline=None)
@given(steps=st.lists(_STEPS, min_size=2, max_size=6), axis=st.integers(0, 1), seed=st.integers(0, 2**31))
def test_each_channel_may_have_its_own_step(steps: list[float], axis: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(-8, 8, (len(steps), 20)).astype(np.float32)
    values = codes * np.array(steps, dtype=np.float32)[:, None]
    values = values if axis == 0 else np.ascontiguousarray(values.T)
    grid = read_grid(values)
    assert grid is not None
    assert grid.bits <= 4
    np.testing.assert_array_equal(_values(grid), values)


@pytest.mark.parametrize(("precision", "bits"), [(1, 2), (2, 4), (3, 4), (5, 6), (7, 8), (8, 10), (11, 12), (15, 16)])
def test_an_odd_code_of_p_bits_takes_one_bit_more(precision: int, bits: int) -> None:
    torch.manual_seed(0)
    p = torch.randint(0, 2, (8, 3, 3, 3), dtype=torch.int32) * precision  # zeros always fit
    values = (quantize(torch.randn(p.shape), p) * 2.0**-5).numpy()
    grid = read_grid(values)
    assert grid is not None
    assert grid.bits == bits
    assert grid.axis is None
    assert float(grid.steps) == 2.0 ** (1 - precision - 5)
    np.testing.assert_array_equal(_values(grid), values)


def test_sixteen_precise_bits_do_not_fit() -> None:
    torch.manual_seed(0)
    values = quantize(torch.randn(16, 64), torch.full((16, 64), 16, dtype=torch.int32)).numpy()
    assert read_grid(values) is None


def test_channels_of_their_own_scale_take_fewer_bits_than_one_scale_for_all() -> None:
    signs = np.where(np.random.default_rng(0).random((4, 300)) < 0.5, -1.0, 1.0).astype(np.float32)
    values = signs * np.array([[1.0], [0.5], [0.25], [0.125]], dtype=np.float32)
    grid = read_grid(values)
    assert grid is not None
    assert (grid.bits, grid.axis) == (2, 0)
    whole = read_grid(values, (None,))
    assert whole is not None
    assert whole.bits == 6
    np.testing.assert_array_equal(_values(grid), values)


def test_a_common_factor_of_a_channel_goes_into_its_step() -> None:
    """Steps of 1 and 3/8 have 1/8 in common, by which the codes of the second are multiples of 3."""
    codes = np.tile(np.arange(-8, 8, dtype=np.float32), (2, 1))
    values = codes * np.array([[1.0], [0.375]], dtype=np.float32)
    grid = read_grid(values)
    assert grid is not None
    assert (grid.bits, grid.axis, grid.steps.tolist()) == (4, 0, [1.0, 0.375])
    np.testing.assert_array_equal(_values(grid), values)


def test_trained_floats_have_no_grid() -> None:
    random = np.random.default_rng(0)
    for shape in ((16, 1, 3, 3), (8, 2), (40, 40)):
        assert read_grid(random.normal(size=shape).astype(np.float32)) is None


def test_one_value_off_by_one_unit_spoils_a_grid() -> None:
    values = np.random.default_rng(0).integers(-7, 8, (4, 50)).astype(np.float32) * np.float32(0.3)
    values[2, 7] = np.nextafter(np.float32(3) * np.float32(0.3), np.float32(1))
    values[2, 8] = np.float32(3) * np.float32(0.3)
    assert read_grid(values) is None


@pytest.mark.parametrize("values", [[[np.nan, 1.0]], [[np.inf, 1.0]], np.zeros((0, 3)), np.ones((2, 2))])
def test_what_is_no_grid_of_fp32(values: object) -> None:
    dtype = np.float64 if isinstance(values, np.ndarray) and values.size else np.float32
    assert read_grid(np.asarray(values, dtype=dtype)) is None


@pytest.mark.filterwarnings("error")
def test_the_largest_numbers_have_grids_too() -> None:
    """Above the very largest there is no next number, only infinity: an interval without an end was searched for its step."""
    largest = np.finfo(np.float32).max
    values = np.array([[1.0, 0.5, 0.1], [1.0, 0.5, 0.3]], dtype=np.float32) * largest
    grid = read_grid(values, (1,))
    assert grid is not None
    np.testing.assert_array_equal(_values(grid)[:, :2], values[:, :2])


def test_zeros_and_negative_zeros_are_code_zero() -> None:
    values = np.array([[0.0, -0.0], [0.5, -0.0]], dtype=np.float32)
    grid = read_grid(values)
    assert grid is not None
    assert grid.codes.tolist() == [[0, 0], [1, 0]]
    empty = read_grid(np.zeros((3, 3), dtype=np.float32))
    assert empty is not None
    assert empty.bits == 2


@settings(max_examples=60, deadline=None)
@given(
    codes=st.lists(st.integers(-(2**16) + 1, 2**16 - 1), min_size=1, max_size=20),
    exponent=st.integers(-59, 0),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_a_binary_grid_is_found_with_the_smallest_codes(codes: list[int], exponent: int, dtype: type) -> None:
    values = np.ldexp(np.array(codes, dtype=dtype), exponent)
    found = read_binary(values)
    assert found is not None
    np.testing.assert_array_equal(np.ldexp(found[0].astype(dtype), found[1]), values)
    assert (found[0] & 1).any() or not any(codes)


def test_codes_of_a_binary_grid_end_at_sixteen_bits_and_a_sign() -> None:
    assert read_binary(np.array([1.0, 2.0**16], dtype=np.float32) * 0.25) is None
    found = read_binary(np.array([1.0, 1.0 - 2.0**16], dtype=np.float32) * 0.25)
    assert found is not None
    assert (found[0].tolist(), found[1]) == ([1, 1 - 2**16], -2)


def test_one_value_among_many_spoils_a_binary_grid() -> None:
    values = np.full(5000, 0.5, dtype=np.float32)
    assert read_binary(values) is not None
    values[4321] = 0.1  # no value of the sample that is looked at first
    assert read_binary(values) is None


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 2.0**16, 2.0**-61, 0.1])
def test_what_is_no_binary_grid(wrong: float) -> None:
    assert read_binary(np.array([wrong, 0.0], dtype=np.float32)) is None


def test_integers_are_their_own_codes() -> None:
    found = read_binary(np.array([4, -8, 12], dtype=np.int64))
    assert found is not None
    assert (found[0].tolist(), found[1]) == ([4, -8, 12], 0)
    assert read_binary(np.array([0, 2**16], dtype=np.int64)) is None
    assert read_binary(np.array([0, 255], dtype=np.uint8)) is not None


def test_the_two_readers_agree_on_a_binary_grid() -> None:
    torch.manual_seed(0)
    values = quantize(torch.randn(6, 7), torch.randint(0, 6, (6, 7), dtype=torch.int32)).numpy()
    binary, grid = read_binary(values.ravel()), read_grid(values, (None,))
    assert binary is not None
    assert grid is not None
    assert float(grid.steps) == 2.0 ** binary[1]
    np.testing.assert_array_equal(grid.codes.ravel(), binary[0])


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
