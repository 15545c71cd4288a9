"""Grids of weights in half precision: w = h(c · s), a product in fp32 that was rounded once more, to 11 or 8 digits.

After that rounding the values of LSQ and others are no multiples of anything in fp32, and of a fine power of two in any
case. So every value tells an interval that c · s lies in, and with small codes c all of them one that s lies in; any s in
it gives the same weights again, and the one with the fewest digits is the cheapest to store.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from paretorch.deploy.codec.grids import Floats, Grid, along, cheapest

HALF = (torch.float16, torch.bfloat16)
_MOST = 512  # |c|
_CLEAR = 32  # codes up to here are told by a step that is known to 8 digits
Wide = NDArray[np.float64]


def read_rounded(values: Floats, dtype: torch.dtype, axes: tuple[int | None, ...] = (None, 0, 1)) -> Grid | None:
    """The cheapest grid with one step or one a slice, whose products are these values in `dtype`; None: there is none."""

    def fit(sizes: Floats) -> tuple[NDArray[np.int16], np.float32, bool] | None:
        for codes, step in _guesses(sizes.astype(np.float64), dtype):
            products = torch.from_numpy(codes.astype(np.float32) * step).to(dtype).float().numpy()
            if np.array_equal(products, sizes):
                return codes, step, True
        return None

    if not values.size or not np.isfinite(values).all():
        return None
    return cheapest([along(values, axis, fit) for axis in axes if axis is None or axis < values.ndim])


def _guesses(sizes: Wide, dtype: torch.dtype) -> Iterator[tuple[NDArray[np.int16], np.float32]]:
    """Codes of the distinct magnitudes, rising, and a step: small codes first."""
    low, high = _rounded_from(sizes, dtype)
    first = np.arange(1, int(_MOST * sizes[0] / sizes[-1]) + 1)[:, None]  # what the least code may be
    codes = np.rint(first * (sizes / sizes[0]))
    clear = codes <= np.maximum(_CLEAR, first)
    least, most = np.where(clear, low / codes, 0.0).max(1), np.where(clear, high / codes, np.inf).min(1)
    codes = np.maximum(np.rint(sizes / ((least + most) / 2)[:, None]), 1)
    least, most = (low / codes).max(1), (high / codes).min(1)
    for i in np.flatnonzero(least <= most):
        yield codes[i].astype(np.int16), _shortest(float(least[i]), float(most[i]))


def _rounded_from(sizes: Wide, dtype: torch.dtype) -> tuple[Wide, Wide]:
    """The interval of numbers that are rounded to each of these."""
    info = torch.finfo(dtype)
    fraction, exponent = np.frexp(sizes)
    unit = np.maximum(np.ldexp(info.eps, exponent - 1), info.smallest_normal * info.eps)
    below = np.where((fraction == 0.5) & (sizes > info.smallest_normal), unit / 4, unit / 2)
    return sizes - below, sizes + unit / 2


def _shortest(least: float, most: float) -> np.float32:
    """The fp32 number between the two that has the fewest digits; the middle, where fp32 has none."""
    exponent = int(np.frexp(most)[1])
    for digits in range(1, 25):
        unit = 2.0 ** (exponent - digits)
        number = np.floor(least / unit + 1) * unit
        if number < most:
            return np.float32(number)
    return np.float32((least + most) / 2)
