"""The grid of chapter 5 against trying every value, and the precisions against the thesis' own numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paretorch.methods.precision.grid import MAX_BITS, power_of_two, quantize, real_bits, s_of_bits, whole_bits


def every_value(p: int) -> list[float]:
    """±1·2⁰ ± 2⁻¹ … ± 2^(1−p), all 2^p sums, smallest first."""
    values = [0.0]
    for j in range(1, p + 1):
        values = [v + sign * 2.0 ** (1 - j) for v in values for sign in (-1, 1)]
    return sorted(values)


def q(w: float, p: int) -> float:
    return float(quantize(torch.tensor([w]), torch.tensor([p], dtype=torch.int32)))


@settings(max_examples=200, deadline=None)
@given(w=st.floats(-4, 4, width=32), p=st.integers(1, 8))
def test_the_nearest_of_all_values(w: float, p: int) -> None:
    nearest = min(abs(w - v) for v in every_value(p))
    assert abs(w - q(w, p)) == nearest
    assert q(w, p) in every_value(p)


@settings(max_examples=100, deadline=None)
@given(p=st.integers(1, MAX_BITS), data=st.data())
def test_odd_multiples_are_kept_and_ties_go_up(p: int, data: st.DataObject) -> None:
    j = data.draw(st.integers(0, 2**p - 1))
    unit = 2.0 ** (1 - p)
    value = (2 * j + 1 - 2**p) * unit
    assert q(value, p) == value
    if j < 2**p - 1:
        assert q(value + unit, p) == value + 2 * unit


@pytest.mark.parametrize("p", range(1, MAX_BITS + 1))
def test_range(p: int) -> None:
    top = 2.0 - 2.0 ** (1 - p)
    for far in (2.0, 2.5, 1e30, math.inf):
        assert q(far, p) == top
        assert q(-far, p) == -top
    assert q(0.0, p) == 2.0 ** (1 - p)


@given(w=st.floats(-4, 4, width=32))
@settings(deadline=None, max_examples=20)
def test_no_bits_are_zero(w: float) -> None:
    assert q(w, 0) == 0.0


def test_examples_of_the_thesis() -> None:
    assert q(0.2, 2) == 0.5
    assert q(0.2, 0) == 0.0
    assert [q(w, 1) for w in (-3.0, -0.1, 0.1, 3.0)] == [-1.0, -1.0, 1.0, 1.0]
    assert [q(w, 2) for w in (-1.9, -0.7, 0.7, 1.9)] == [-1.5, -0.5, 0.5, 1.5]
    assert float(s_of_bits(8.0)) == pytest.approx(-math.log(127), rel=1e-6)
    assert float(torch.sigmoid(s_of_bits(8.0))) == pytest.approx(2.0**-7, rel=1e-6)


def test_powers_of_two_are_exact() -> None:
    exponent = torch.arange(-126, 128)
    assert power_of_two(exponent).tolist() == [2.0**k for k in range(-126, 128)]


@settings(max_examples=50, deadline=None)
@given(bits=st.floats(1.01, MAX_BITS + 0.5))
def test_s_is_the_inverse_of_bits(bits: float) -> None:
    assert float(real_bits(s_of_bits(bits))) == pytest.approx(bits, rel=1e-5)


def test_real_bits_stay_finite() -> None:
    bits = real_bits(torch.tensor([-12000.0, 0.0, 12000.0]))
    assert bits.tolist() == pytest.approx([1 + 12000 / math.log(2), 2.0, 1.0])


@pytest.mark.parametrize("p", range(2, MAX_BITS + 1))
def test_whole_precisions_do_not_fall(p: int) -> None:
    """p_init = 14 must not end as 13 by rounding errors."""
    for rounding in ("floor", "round"):
        assert int(whole_bits(real_bits(s_of_bits(float(p))), rounding=rounding)) == p


@settings(max_examples=100, deadline=None)
@given(
    real=st.floats(1, 18, width=32).filter(lambda r: min(abs(r * 2 - round(r * 2)), 1) > 1e-3),
    allowed=st.sets(st.integers(1, MAX_BITS), max_size=5),
    rounding=st.sampled_from(["floor", "round"]),
)
def test_whole_bits(real: float, allowed: set[int], rounding: str) -> None:
    levels = sorted(allowed) or list(range(1, MAX_BITS + 1))
    below = [level for level in levels if level <= real]
    if rounding == "floor":
        expected = {below[-1] if below else levels[0]}
    else:
        expected = {level for level in levels if abs(level - real) == min(abs(one - real) for one in levels)}
    assert int(whole_bits(torch.tensor(real), tuple(allowed), rounding)) in expected
