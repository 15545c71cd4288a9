"""Which grid values lie on, read off the values alone: whole multiples of a step, w = fl(c · s), |c| small, exact.

A binary grid has a power of two as its step, and is found by scaling, in any dtype. An odd p-bit code (chapter 5) is such
a multiple with s = 2^(1−p) times the scale, and takes p + 1 bits as an integer in two's complement; zeros are c = 0.
The steps of LSQ, DoReFa and others are any numbers, and c · s has been rounded once to fp32. So s is found in two moves:
a ratio by which all values are near integers, then the fp32 numbers s that explain every rounding, which are the
intersection of one small interval a value, and of which one is tried after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paretorch.deploy.codec.entropy import Array

Floats = NDArray[np.float32]
Codes = NDArray[np.signedinteger[Any]]
Fit = Callable[[Floats], tuple[NDArray[np.int16], np.float32, bool] | None]

WIDTHS = (2, 4, 6, 8, 10, 12, 16)  # bits that a code may take
_BINARY_BITS = 16  # |c| < 2**16 on a binary grid: up to 17 bits of precision within one tensor
_MOST = 512  # magnitudes, where steps are any numbers; with a power of two, 2^15
_SAMPLE = 4096
_TOP = np.finfo(np.float32).max
_NEAR = 4.0 * 2.0**-24  # two values, their ratio and a product are each off by half a unit in the last place


@dataclass(frozen=True, eq=False)
class Grid:
    """w = codes · steps: one step, or one a slice along `axis`. exact: bit for bit in fp32, but for the sign of a zero."""

    codes: Codes
    steps: Floats
    axis: int | None
    exact: bool

    @property
    def bits(self) -> int:
        return width_of(self.codes)

    @property
    def spread(self) -> Floats:
        """The steps, in a shape that multiplies the codes."""
        if self.axis is None:
            return self.steps
        return self.steps.reshape([-1 if i == self.axis else 1 for i in range(self.codes.ndim)])

    @property
    def cost(self) -> int:
        """Bytes of codes and steps."""
        bits = width_of(self.codes >> 1) if are_odd(self.codes) else self.bits
        return -(-self.codes.size * bits // 8) + self.steps.nbytes


def are_odd(codes: Codes) -> bool:
    """Whether all codes are odd, as those of chapter 5 are where precisions are equal and nothing is dropped."""
    return bool((codes & 1).all())


def width_of(codes: Codes) -> int:
    """The fewest bits that hold every code in two's complement."""
    low, high = int(codes.min(initial=0)), int(codes.max(initial=0))
    return next(width for width in WIDTHS if low >= -(1 << (width - 1)) and high < 1 << (width - 1))


def read_grid(values: NDArray[Any], axes: tuple[int | None, ...] = (None, 0, 1), near: bool = False) -> Grid | None:
    """The cheapest exact grid with one step (axis None) or one a slice along an axis; None where there is none.

    near: take one that is off by a rounding too (a norm that was multiplied into weights rounds them again).
    """
    if values.dtype != np.float32 or not values.size or not np.isfinite(values).all():
        return None
    whole, fit = None, _fit if near else _exact
    if None in axes:
        whole = _binary(values) or along(values, None, fit)
    found = [whole]
    for axis in axes:
        if axis is not None and axis < values.ndim:
            found.append(along(values, axis, fit) if whole is None or not whole.exact else _coarser(whole, axis))
    return cheapest(found)


def cheapest(grids: Sequence[Grid | None]) -> Grid | None:
    """Of those there are, exact ones first."""
    found = [grid for grid in grids if grid is not None]
    return min(found, key=lambda grid: (not grid.exact, grid.cost), default=None)


def read_binary(values: Array) -> tuple[Array, int] | None:
    """Codes c and the exponent e with values == c * 2**e and |c| < 2**16, c as small as possible; or None.

    The values are flat. Integers are their own codes, with e = 0.
    """
    if values.dtype.kind in "iub":
        low, high = int(values.min()), int(values.max())
        return (values.astype(np.int32), 0) if max(-low, high) < 1 << _BINARY_BITS else None
    top = float(np.abs(values).max())
    if top == 0.0:
        return np.zeros(values.size, dtype=np.int32), 0
    if not 2.0**-60 < top < 2.0**_BINARY_BITS:  # also: NaN, infinity
        return None  # scaling up by at most 2**76 is exact in float32, scaling down would lose subnormals
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
    """The same weights with a step a slice: a factor that all codes of a slice have moves into its step.

    Any factor where the products stay as they are; a step that was itself rounded takes powers of two alone.
    """
    rows = np.moveaxis(np.abs(grid.codes.astype(np.int32)), axis, 0).reshape(grid.codes.shape[axis], -1)
    factors = np.maximum(np.gcd.reduce(rows, axis=1), 1)
    if (factors == 1).all():
        return None  # no slice gains
    weights = grid.codes * grid.spread
    for shares in (factors, factors & -factors):
        spread = shares.reshape([-1 if i == axis else 1 for i in range(grid.codes.ndim)])
        steps = (shares.astype(np.float32) * grid.steps).reshape(-1)
        found = Grid((grid.codes // spread).astype(np.int16), steps, axis, grid.exact)
        if np.array_equal(found.codes * found.spread, weights):
            return found
    return None


def _binary(values: Floats) -> Grid | None:
    """A binary grid of up to 16 bits, with the factor that all codes have moved into the step."""
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
    return Grid(codes.astype(np.int16).reshape(values.shape), step, None, True)


def along(values: Floats, axis: int | None, fit: Fit) -> Grid | None:
    """A grid with any step for each slice along the axis, or for all values.

    fit: codes of distinct magnitudes, rising, their step, and whether all products are exact; None where there are none.
    """
    rows = values.reshape(1, -1) if axis is None else np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    codes, steps = np.zeros(rows.shape, dtype=np.int16), np.ones(len(rows), dtype=np.float32)
    exact = True
    for i, row in enumerate(rows):
        sizes = np.abs(row)
        distinct = _distinct(sizes)
        if distinct is None:
            return None
        if not distinct.size:
            continue  # zeros have any step
        found = fit(distinct)
        if found is None:
            return None
        numbers, steps[i], good = found
        exact &= good
        places = np.searchsorted(distinct, sizes).clip(max=distinct.size - 1)
        codes[i] = np.sign(row).astype(np.int16) * np.where(sizes > 0, numbers[places], 0)
    if axis is None:
        return Grid(codes.reshape(values.shape), steps[0], None, exact)
    moved = np.moveaxis(values, axis, 0).shape
    return Grid(np.ascontiguousarray(np.moveaxis(codes.reshape(moved), 0, axis)), steps, axis, exact)


def _distinct(sizes: Floats) -> Floats | None:
    """The magnitudes above 0, rising; None if they are too many to be codes."""
    table = np.unique(sizes[:: max(1, sizes.size // _SAMPLE)])
    if table.size <= _MOST + 1:  # else a few values tell that there is no grid, and nothing need be sorted
        places = np.searchsorted(table, sizes).clip(max=table.size - 1)
        table = np.union1d(table, sizes[table[places] != sizes])
    table = table[table > 0]
    return table if table.size <= _MOST else None


def _fit(sizes: Floats) -> tuple[NDArray[np.int16], np.float32, bool] | None:
    """Codes of the distinct magnitudes, rising, and their step; True where every product is exact."""
    wide = sizes.astype(np.float64)
    first = np.arange(1, int(_MOST * wide[0] / wide[-1] * (1 + _NEAR)) + 1)  # what the least code may be
    ratios = np.outer(first, wide / wide[0])
    whole = np.rint(ratios)
    near = whole[(np.abs(ratios - whole) <= _NEAR * whole).all(1)]
    for numbers in near:
        step = _step(sizes, numbers)
        if step is not None:
            return numbers.astype(np.int16), step, True
    if not len(near):
        return None
    return near[0].astype(np.int16), np.float32(np.mean(wide / near[0])), False


def _exact(sizes: Floats) -> tuple[NDArray[np.int16], np.float32, bool] | None:
    """As `_fit`, but None where some product is off: so the first slice that is ends the search."""
    found = _fit(sizes)
    return found if found is not None and found[2] else None


def _step(sizes: Floats, numbers: NDArray[np.float64]) -> np.float32 | None:
    """The fp32 number s with fl(c · s) equal to the magnitude for every code c."""
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
