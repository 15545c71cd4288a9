"""The grid that values lie on, read off the values: whole multiples of a step, w = fl(c · s), with small |c|, exact.

A binary grid has a power of two as its step, and is found by scaling, in any dtype. An odd p-bit code (chapter 5) is such
a multiple with s = 2^(1−p) times the scale, and takes p + 1 bits as an integer in two's complement; zeros are c = 0.

The steps of LSQ, DoReFa and others are any numbers, and c · s is rounded to fp32. So s is found in two steps: first a ratio
by which all values are near integers, then the fp32 numbers s that give every rounded value. Each value gives a small interval
for s; the numbers in the intersection of all intervals are tried one by one.

Weights in half precision are w = h(c · s): the product in fp32 is rounded again, to 11 or 8 digits. The results are no multiples
of an fp32 number, but always multiples of a fine power of two. Each value gives an interval for c · s, and with small codes c
an interval for s. Every s in the intersection gives the same weights; the one with the fewest digits is the cheapest to store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paretorch.deploy.codec.streams import Array

Floats = NDArray[np.float32]
Wide = NDArray[np.float64]
Codes = NDArray[np.signedinteger[Any]]
Fit = Callable[[Floats], tuple[NDArray[np.int16], np.float32] | None]

WIDTHS = (2, 4, 6, 8, 10, 12, 16)  # bits that a code may take
_BINARY_BITS = 16  # |c| < 2**16 on a binary grid: up to 17 bits of precision within one tensor
_MAX_DISTINCT = 512  # magnitudes, if steps may be any numbers; with a power of two, 2^15
_SAMPLE = 4096
_TOP = np.finfo(np.float32).max
_NEAR = 4.0 * 2.0**-24  # two values, their ratio and a product each have an error of half a unit in the last place
HALF = (torch.float16, torch.bfloat16)
_MAX_CODE = 512  # |c|
_CLEAR_CODE = 32  # codes up to here are certain if the step is known to 8 digits


@dataclass(frozen=True, eq=False)
class Grid:
    """w = codes · steps, exact except for the sign of zeros: one step, or one per slice along `axis`."""

    codes: Codes
    steps: Floats
    axis: int | None

    @property
    def bits(self) -> int:
        return width_of(self.codes)

    @property
    def spread(self) -> Floats:
        """The steps, in a shape that broadcasts with the codes."""
        if self.axis is None:
            return self.steps
        return self.steps.reshape([-1 if i == self.axis else 1 for i in range(self.codes.ndim)])

    @property
    def cost(self) -> int:
        """Bytes of the codes and steps."""
        bits = width_of(self.codes >> 1) if are_odd(self.codes) else self.bits
        return -(-self.codes.size * bits // 8) + self.steps.nbytes


def are_odd(codes: Codes) -> bool:
    """Return whether all codes are odd, as in chapter 5 if all precisions are equal and nothing is dropped."""
    return bool((codes & 1).all())


def width_of(codes: Codes) -> int:
    """Return the fewest bits that hold every code in two's complement."""
    low, high = int(codes.min(initial=0)), int(codes.max(initial=0))
    return next(width for width in WIDTHS if low >= -(1 << (width - 1)) and high < 1 << (width - 1))


def read_grid(values: NDArray[Any], axes: tuple[int | None, ...] = (None, 0, 1)) -> Grid | None:
    """Return the cheapest exact grid with one step (axis None) or one per slice along an axis; None if there is none."""
    if values.dtype != np.float32 or not values.size or not np.isfinite(values).all():
        return None
    whole = _binary(values) or along(values, None, _fit) if None in axes else None
    found = [whole]
    for axis in axes:
        if axis is not None and axis < values.ndim:
            found.append(along(values, axis, _fit) if whole is None else _coarser(whole, axis))
    return cheapest(found)


def cheapest(grids: Sequence[Grid | None]) -> Grid | None:
    """Return the cheapest grid that is not None."""
    found = [grid for grid in grids if grid is not None]
    return min(found, key=lambda grid: grid.cost, default=None)


def read_binary(values: Array) -> tuple[Array, int] | None:
    """Return the smallest codes c, and the exponent e, with values == c * 2**e and |c| < 2**16; None if there are none.

    The values are flat. Integers are their own codes, with e = 0.
    """
    if values.dtype.kind in "iub":
        low, high = int(values.min()), int(values.max())
        return (values.astype(np.int32), 0) if max(-low, high) < 1 << _BINARY_BITS else None
    top = float(np.abs(values).max())
    if top == 0.0:
        return np.zeros(values.size, dtype=np.int32), 0
    if not 2.0**-60 < top < 2.0**_BINARY_BITS:  # also: NaN, infinity
        return None  # scaling up by at most 2**76 is exact in float32; scaling down would lose subnormal numbers
    shift = _BINARY_BITS - int(np.frexp(top)[1])
    sample = values[:: max(1, values.size // 1024)] * values.dtype.type(2.0**shift)
    if not np.array_equal(np.rint(sample), sample):
        return None
    scaled = values * values.dtype.type(2.0**shift)
    if not np.array_equal(np.rint(scaled), scaled):
        return None
    codes = scaled.astype(np.int32)
    used = int(np.bitwise_or.reduce(np.abs(codes)))
    common = (used & -used).bit_length() - 1
    return codes >> common, common - shift


def _coarser(grid: Grid, axis: int) -> Grid | None:
    """Return the same weights with one step per slice: a factor common to all codes of a slice moves into its step.

    Any factor is allowed if the products stay the same. If the step itself was rounded, only powers of two are.
    """
    rows = np.moveaxis(np.abs(grid.codes.astype(np.int32)), axis, 0).reshape(grid.codes.shape[axis], -1)
    factors = np.maximum(np.gcd.reduce(rows, axis=1), 1)
    if (factors == 1).all():
        return None  # no slice has smaller codes
    weights = grid.codes * grid.spread
    for shares in (factors, factors & -factors):
        spread = shares.reshape([-1 if i == axis else 1 for i in range(grid.codes.ndim)])
        steps = (shares.astype(np.float32) * grid.steps).reshape(-1)
        found = Grid((grid.codes // spread).astype(np.int16), steps, axis)
        if np.array_equal(found.codes * found.spread, weights):
            return found
    return None


def _binary(values: Floats) -> Grid | None:
    """Return a binary grid of up to 16 bits, the common factor of all codes moved into the step."""
    found = read_binary(values.reshape(-1))
    if found is None:
        return None
    codes, exponent = found
    lowest = int(codes.min())
    distinct = np.flatnonzero(np.bincount(codes - lowest)) + lowest
    common = max(1, int(np.gcd.reduce(distinct)))
    codes = codes // common if common > 1 else codes
    step = np.array(common * 2.0**exponent, dtype=np.float32)
    if codes.max() >= 1 << 15 or codes.min() < -(1 << 15) or not np.array_equal(codes * step, values.reshape(-1)):
        return None
    return Grid(codes.astype(np.int16).reshape(values.shape), step, None)


def along(values: Floats, axis: int | None, fit: Fit) -> Grid | None:
    """Return a grid with any step for each slice along the axis, or for all values (axis None).

    Args:
        fit: Maps distinct magnitudes, ascending, to their codes and the step, or to None.
    """
    rows = values.reshape(1, -1) if axis is None else np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    codes, steps = np.zeros(rows.shape, dtype=np.int16), np.ones(len(rows), dtype=np.float32)
    for i, row in enumerate(rows):
        sizes = np.abs(row)
        distinct = _distinct(sizes)
        if distinct is None:
            return None
        if not distinct.size:
            continue  # zeros fit any step
        found = fit(distinct)
        if found is None:
            return None
        numbers, steps[i] = found
        places = np.searchsorted(distinct, sizes).clip(max=distinct.size - 1)
        codes[i] = np.sign(row).astype(np.int16) * np.where(sizes > 0, numbers[places], 0)
    if axis is None:
        return Grid(codes.reshape(values.shape), steps[0], None)
    moved = np.moveaxis(values, axis, 0).shape
    return Grid(np.ascontiguousarray(np.moveaxis(codes.reshape(moved), 0, axis)), steps, axis)


def _distinct(sizes: Floats) -> Floats | None:
    """Return the magnitudes above 0, ascending; None if they are too many to be codes."""
    table = np.unique(sizes[:: max(1, sizes.size // _SAMPLE)])
    if table.size <= _MAX_DISTINCT + 1:  # else the sample excludes a grid, without sorting all values
        places = np.searchsorted(table, sizes).clip(max=table.size - 1)
        table = np.union1d(table, sizes[table[places] != sizes])
    table = table[table > 0]
    return table if table.size <= _MAX_DISTINCT else None


def _near_codes(sizes: Floats) -> NDArray[np.float64]:
    """Return all codes by which the distinct, ascending magnitudes are near multiples of a step; small ones first."""
    wide = sizes.astype(np.float64)
    first = np.arange(1, int(_MAX_DISTINCT * wide[0] / wide[-1] * (1 + _NEAR)) + 1)  # possible least codes
    ratios = np.outer(first, wide / wide[0])
    whole = np.rint(ratios)
    return np.asarray(whole[(np.abs(ratios - whole) <= _NEAR * whole).all(1)])


def _fit(sizes: Floats) -> tuple[NDArray[np.int16], np.float32] | None:
    """Return the smallest codes whose products are exact; None if there are none, which ends the search."""
    for numbers in _near_codes(sizes):
        step = _step(sizes, numbers)
        if step is not None:
            return numbers.astype(np.int16), step
    return None


def _step(sizes: Floats, numbers: NDArray[np.float64]) -> np.float32 | None:
    """Return the fp32 number s with fl(c · s) equal to the magnitude for every code c; None if there is none."""
    half = np.spacing(np.minimum(sizes, np.nextafter(_TOP, np.float32(0)))).astype(np.float64) / 2
    low = float(np.max((sizes - half) / numbers))
    high = min(float(np.min((sizes + half) / numbers)), float(_TOP))
    step = np.nextafter(np.float32(low), np.float32(0))
    codes = numbers.astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        while step <= high:
            if step > 0 and np.array_equal(codes * step, sizes):
                return np.float32(step)
            step = np.nextafter(step, np.float32(np.inf))
    return None


def read_rounded(values: Floats, dtype: torch.dtype, axes: tuple[int | None, ...] = (None, 0, 1)) -> Grid | None:
    """Return the cheapest grid whose products, rounded to `dtype`, are these values; None if there is none."""

    def fit(sizes: Floats) -> tuple[NDArray[np.int16], np.float32] | None:
        for codes, step in _guesses(sizes.astype(np.float64), dtype):
            products = torch.from_numpy(codes.astype(np.float32) * step).to(dtype).float().numpy()
            if np.array_equal(products, sizes):
                return codes, step
        return None

    if not values.size or not np.isfinite(values).all():
        return None
    return cheapest([along(values, axis, fit) for axis in axes if axis is None or axis < values.ndim])


def _guesses(sizes: Wide, dtype: torch.dtype) -> Iterator[tuple[NDArray[np.int16], np.float32]]:
    """Yield codes of the distinct magnitudes, ascending, and a step; small codes first."""
    low, high = _rounded_from(sizes, dtype)
    first = np.arange(1, int(_MAX_CODE * sizes[0] / sizes[-1]) + 1)[:, None]  # possible least codes
    codes = np.rint(first * (sizes / sizes[0]))
    clear = codes <= np.maximum(_CLEAR_CODE, first)
    least, most = np.where(clear, low / codes, 0.0).max(1), np.where(clear, high / codes, np.inf).min(1)
    codes = np.maximum(np.rint(sizes / ((least + most) / 2)[:, None]), 1)
    least, most = (low / codes).max(1), (high / codes).min(1)
    for i in np.flatnonzero(least <= most):
        yield codes[i].astype(np.int16), _shortest(float(least[i]), float(most[i]))


def _rounded_from(sizes: Wide, dtype: torch.dtype) -> tuple[Wide, Wide]:
    """Return the interval of numbers that round to each of these."""
    info = torch.finfo(dtype)
    fraction, exponent = np.frexp(sizes)
    unit = np.maximum(np.ldexp(info.eps, exponent - 1), info.smallest_normal * info.eps)
    below = np.where((fraction == 0.5) & (sizes > info.smallest_normal), unit / 4, unit / 2)
    return sizes - below, sizes + unit / 2


def _shortest(least: float, most: float) -> np.float32:
    """Return the fp32 number between the two with the fewest digits; the middle if fp32 has none."""
    exponent = int(np.frexp(most)[1])
    for digits in range(1, 25):
        unit = 2.0 ** (exponent - digits)
        number = np.floor(least / unit + 1) * unit
        if number < most:
            return np.float32(number)
    return np.float32((least + most) / 2)
