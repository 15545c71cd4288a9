"""How the values of a weight are grouped, read off the values: by row, by column, or so many neighbours along a row.

A weight is looked at as rows along its first axis, its second axis, or as one row of all values. In a few rows the longest
beginning that lies on one grid is found by bisection: it ends where the first group ends, whatever its length. These lengths
and the usual ones are compared by what a sample of such groups would cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paretorch.deploy.codec.lines import fit_codes
from paretorch.deploy.codec.multiples import MAX_CODE, TOLERANCE, Codes, Floats, Mask, are_multiples, fit_multiples

Kind = torch.dtype | None  # multiples of steps, rounded to this dtype; None: steps and offsets
LINES: Kind = None
FLAT = 2  # in place of an axis: one row of all values
_ROWS = 16  # in which beginnings are looked for
_WIDEST = 1 << 14  # values of a row that are looked at
_GROUPS = 96  # by which a length is judged
_USUAL = (16, 32, 64, 96, 128, 192, 256, 384, 512, 1024)
_LEAST = 8  # values in a group: fewer do not pay for a step
_STEP_BITS = 28.0
_LONG = 32  # a group whose step costs little: steps along the other axis need not be looked for
_ALL = 0.98  # share of groups on grids with which the search ends
_FEW_AWAY, _MANY_AWAY = 0.05, 0.25  # shares of values on no grid: with few the search ends, with many it was in vain
_NEAR = 8.0 * 2.0**-24
_WORTH = 0.75  # of the bits of plain values: what a layout may cost at most


@dataclass(frozen=True)
class Layout:
    """Groups of `length` neighbours in rows along `axis`; the last group of a row may be shorter.

    Args:
        lines: Whether the groups have offsets beside their steps.
    """

    axis: int
    length: int
    lines: bool

    def rows(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values as (rows, values in a row)."""
        return as_rows(values, self.axis)

    def groups(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values as (groups, length), with zeros after the end of a row."""
        rows = self.rows(values)
        more = -rows.shape[1] % self.length
        if more:
            rows = np.pad(rows, ((0, 0), (0, more)))
        return np.ascontiguousarray(rows).reshape(-1, self.length)


def as_rows(values: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return a weight as a matrix whose rows run along the axis."""
    if axis == FLAT:
        return values.reshape(1, -1)
    return np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)


def find_layout(values: Floats, dtype: torch.dtype = torch.float32) -> Layout | None:
    """Return the layout by which a sample of the values takes the fewest bits; None if none is worth it.

    Args:
        dtype: What the values were rounded to. Offsets are looked for in fp32 only.
    """
    value_bits = 8.0 * dtype.itemsize
    density = float(np.count_nonzero(values) / values.size)
    best: Layout | None = None
    least = _WORTH * value_bits * density
    kinds: tuple[Kind, ...] = (dtype, LINES) if dtype == torch.float32 else (dtype,)
    for kind in kinds:
        for axis in (0, 1, FLAT):
            if axis != FLAT and (axis >= values.ndim or values.shape[axis] < 2):
                continue
            rows, enough, certain = as_rows(values, axis), False, kind in (torch.float32, LINES)
            for length in _lengths(rows, kind):
                cost, away, fits = _cost(rows, length, kind, value_bits)
                if cost < least:
                    best, least, enough = Layout(axis, length, kind is LINES), cost, away < _FEW_AWAY
                    if fits > _ALL and certain and length >= _LONG and length != math.prod(values.shape[2:]):
                        return best  # shorter groups fit as well and have more steps
            if enough and best is not None and best.length >= _LONG:
                return best
    return best


def _lengths(rows: Floats, kind: Kind) -> list[int]:
    """Return the lengths that groups in these rows may have, longest first."""
    width = rows.shape[1]
    if width < _LEAST:
        return []
    sample = np.ascontiguousarray(rows[_pick(len(rows), _ROWS), :_WIDEST])
    if _fits(sample, kind).mean() > _ALL:
        certain = width <= _WIDEST and kind in (torch.float32, LINES)  # with few digits, much is near some multiple
        return [width] if certain else [width, *(length for length in _USUAL[::-1] if length < width)]
    found = set(_beginnings(sample, kind).tolist())
    twice = np.where(repeated(sample), sample, np.float32(0))
    if max(found) < width and 2 * np.count_nonzero(twice) > np.count_nonzero(sample):
        found |= set(_beginnings(twice, kind).tolist())  # at an outlier, which occurs once, every beginning would end
    found |= {length for length in (*_USUAL, *_divisors(width)) if length <= max(found)}
    if width <= _WIDEST or max(found) >= _WIDEST:
        found.add(width)
    return sorted((length for length in found if _LEAST <= length <= width), reverse=True)


def _divisors(width: int) -> list[int]:
    small = [i for i in range(1, math.isqrt(width) + 1) if width % i == 0]
    return [*small, *(width // i for i in small)] if width < 1 << 20 else []


def _beginnings(rows: Floats, kind: Kind) -> NDArray[np.int64]:
    """Return for each row the most values from its start on that lie on one grid."""
    low, high = np.full(len(rows), 1), np.full(len(rows), rows.shape[1])
    place = np.arange(rows.shape[1])
    while (low < high).any():
        middle = (low + high + 1) // 2
        fits = _fits(np.where(place < middle[:, None], rows, np.float32(0)), kind)
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    return low


def _cost(rows: Floats, length: int, kind: Kind, value_bits: float) -> tuple[float, float, float]:
    """Return bits per value, about, the share of values on no grid, and of groups on grids, in a sample of such groups."""
    many = -(-rows.shape[1] // length)
    picked = _pick(len(rows) * many, max(1, min(_GROUPS, (1 << 17) // length)))
    place = picked[:, None] % many * length + np.arange(length)
    inside = place < rows.shape[1]
    sample = np.where(inside, rows[picked[:, None] // many, np.where(inside, place, 0)], np.float32(0))
    codes, known, fits = fit_most(sample, kind)
    away = 1.0 - float(known[inside].mean())
    if away > _MANY_AWAY:
        return math.inf, away, 0.0
    counts = np.unique(codes[inside & known], return_counts=True)[1]
    entropy = float(np.log2(counts.sum() / counts) @ counts / counts.sum())
    steps = _STEP_BITS * (1 + (kind is LINES)) * many / rows.shape[1]
    return entropy + steps + away * (value_bits + 4.0), away, float(fits.mean())


def fit_most(groups: Floats, kind: Kind) -> tuple[Codes, Mask, Mask]:
    """Return codes, which values are on the grid of their group, and which groups have no others.

    A group that lies on no grid is fitted by the values that occur twice in it, which outliers do not.
    """
    codes, fits, _ = _fit(groups, kind)
    known = np.ones(groups.shape, dtype=bool)
    off = np.flatnonzero(~fits)
    if off.size:
        some = np.where(repeated(groups[off]), groups[off], np.float32(0))
        again, found, nearest = _fit(some, kind, groups[off])
        codes[off] = np.where(again != 0, again, nearest[0])
        known[off] = found[:, None] & nearest[1] | (groups[off] == 0)
    return codes, known, fits


def _fit(groups: Floats, kind: Kind, others: Floats | None = None) -> tuple[Codes, Mask, tuple[Codes, Mask]]:
    """Return codes of groups and which groups fit; codes of other values on the same grids, and which of these fit."""
    if kind is None:
        codes, slope, base, fits = fit_codes(groups)
    else:
        multiples = fit_multiples(groups, kind)
        codes, fits, slope = multiples.codes, multiples.fits, multiples.steps.astype(np.float64)
        base = np.zeros(len(groups))
    if others is None:
        return codes, fits, (codes, fits)
    with np.errstate(all="ignore"):
        ratio = (others - base[:, None]) / slope[:, None]
        ratio = np.where(np.abs(ratio) < MAX_CODE, ratio, 0.5)
    near = _NEAR if kind is None else 2 * TOLERANCE[kind]
    whole = np.rint(ratio)
    size = np.maximum(np.abs(whole), np.abs(base / np.where(slope > 0, slope, 1.0))[:, None])
    return codes, fits, (whole.astype(np.int32), np.abs(ratio - whole) <= near * size)


def _fits(groups: Floats, kind: Kind) -> Mask:
    return fit_codes(groups)[3] if kind is None else are_multiples(groups, kind)


def repeated(groups: Floats) -> Mask:
    """Return which values occur twice or more often in their group."""
    order = np.argsort(groups, axis=1)
    ordered = np.take_along_axis(groups, order, axis=1)
    same = np.zeros((len(groups), groups.shape[1] + 1), dtype=bool)
    same[:, 1:-1] = ordered[:, 1:] == ordered[:, :-1]
    found = np.empty(groups.shape, dtype=bool)
    np.put_along_axis(found, order, same[:, 1:] | same[:, :-1], axis=1)
    return found


def _pick(count: int, most: int) -> NDArray[np.int64]:
    """Return at most so many of `count` places, spread evenly."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))
