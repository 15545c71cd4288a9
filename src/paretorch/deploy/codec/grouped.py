"""Values as codes, steps and offsets of groups, read off the values: by row, by column, or neighbours along a row.

The layout is found first. A weight is read as rows along its first axis, along its second axis, or as one row of all values.
In a few rows the longest beginning that lies on one grid is found by bisection: it ends where the first group ends, whatever
its length. These lengths and common ones are compared by what a sample of such groups would cost.

Then every group is fitted. A value whose product is a few units in the last place off gets a correction, because norms that
are multiplied into weights round them again. Any other value that is not on the grid of its group is an escape, stored as it
is. So every value is restored exactly, and a few outliers do no harm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paretorch.deploy.codec.lines import FORMS, Plan, fit_codes, fit_lines, nearest_codes, plan_lines
from paretorch.deploy.codec.multiples import (
    MAX_CODE,
    TOLERANCE,
    Codes,
    Floats,
    Mask,
    Words,
    are_multiples,
    as_floats,
    fit_multiples,
    share_digits,
)
from paretorch.deploy.codec.streams import Array
from paretorch.deploy.codec.words import to_floats, to_words

Kind = torch.dtype | None  # multiples of steps, rounded to this dtype; None: steps and offsets
LINES: Kind = None
FLAT = 2  # in place of an axis: one row of all values
_ROWS = 16  # in which beginnings are searched
_MAX_ROW = 1 << 14  # values of a row that are searched
_GROUPS = 96  # in the sample that estimates the cost of a length
_COMMON_LENGTHS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 1024)
_MIN_LENGTH = 8  # values in a group: fewer do not pay for a step
_STEP_BITS = 28.0
_LONG = 32  # a group of this length has a cheap step: steps along the other axis are not searched
_ALL = 0.98  # share of groups on grids at which the search ends
_FEW_AWAY, _MANY_AWAY = 0.05, 0.25  # shares of values on no grid: with few the search ends, with many it fails
_NEAR = 8.0 * 2.0**-24
_MAX_COST = 0.75  # of a layout, relative to the bits of plain values
ESCAPE = 4  # in place of a correction
_CHUNK = 1 << 20  # values fitted at once
_MAX_GUESS = 1 << 11  # |c| of a value that occurs once in its group
_MANY_CORRECTED = 0.02  # share of values at which another form is tried
_MAX_ESCAPES = 0.25  # share of values


@dataclass(frozen=True)
class Layout:
    """Groups of `length` neighbours in rows along `axis`; the last group of a row may be shorter.

    Args:
        lines: Whether the groups have offsets in addition to steps.
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
        dtype: The dtype that the values were rounded to. Offsets are searched in fp32 only.
    """
    value_bits = 8.0 * dtype.itemsize
    density = float(np.count_nonzero(values) / values.size)
    best: Layout | None = None
    least = _MAX_COST * value_bits * density
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
    """Return possible lengths of groups in these rows, longest first."""
    width = rows.shape[1]
    if width < _MIN_LENGTH:
        return []
    sample = np.ascontiguousarray(rows[_pick(len(rows), _ROWS), :_MAX_ROW])
    if _on_grid(sample, kind).mean() > _ALL:
        certain = width <= _MAX_ROW and kind in (torch.float32, LINES)  # with few digits, much is near some multiple
        return [width] if certain else [width, *(length for length in _COMMON_LENGTHS[::-1] if length < width)]
    found = set(_beginnings(sample, kind).tolist())
    twice = np.where(repeated(sample), sample, np.float32(0))
    if max(found) < width and 2 * np.count_nonzero(twice) > np.count_nonzero(sample):
        found |= set(_beginnings(twice, kind).tolist())  # without outliers, which occur once and end a beginning
    found |= {length for length in (*_COMMON_LENGTHS, *_divisors(width)) if length <= max(found)}
    if width <= _MAX_ROW or max(found) >= _MAX_ROW:
        found.add(width)
    return sorted((length for length in found if _MIN_LENGTH <= length <= width), reverse=True)


def _divisors(width: int) -> list[int]:
    small = [i for i in range(1, math.isqrt(width) + 1) if width % i == 0]
    return [*small, *(width // i for i in small)] if width < 1 << 20 else []


def _beginnings(rows: Floats, kind: Kind) -> NDArray[np.int64]:
    """Return for each row how many values from its start lie on one grid."""
    low, high = np.full(len(rows), 1), np.full(len(rows), rows.shape[1])
    place = np.arange(rows.shape[1])
    while (low < high).any():
        middle = (low + high + 1) // 2
        fits = _on_grid(np.where(place < middle[:, None], rows, np.float32(0)), kind)
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    return low


def _cost(rows: Floats, length: int, kind: Kind, value_bits: float) -> tuple[float, float, float]:
    """Return estimated bits per value, the share of values on no grid, and the share of groups on grids, from a sample."""
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
    codes, fits, _ = _fit_codes(groups, kind)
    known = np.ones(groups.shape, dtype=bool)
    off = np.flatnonzero(~fits)
    if off.size:
        some = np.where(repeated(groups[off]), groups[off], np.float32(0))
        again, found, nearest = _fit_codes(some, kind, groups[off])
        codes[off] = np.where(again != 0, again, nearest[0])
        known[off] = found[:, None] & nearest[1] | (groups[off] == 0)
    return codes, known, fits


def _fit_codes(groups: Floats, kind: Kind, others: Floats | None = None) -> tuple[Codes, Mask, tuple[Codes, Mask]]:
    """Return the codes of groups and which groups fit, and the same for other values on the same grids."""
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


def _on_grid(groups: Floats, kind: Kind) -> Mask:
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


@dataclass(frozen=True, eq=False)
class Grouped:
    """Codes and corrections (rows, values in a row), steps and offsets (rows, groups in a row).

    Args:
        form: 0: w = fl(c · s). Else 1 + the number of a form of `lines`, and zeros have no code.
        zeros: Whether each value is zero.
        escaped: The words of the values that are escaped, in the order of the rows.
    """

    layout: Layout
    form: int
    codes: Codes
    steps: Floats
    offsets: Floats
    corrections: NDArray[np.int8]
    zeros: Mask
    escaped: Array
    dtype: torch.dtype


def read_groups(words: Array, dtype: torch.dtype, shape: tuple[int, ...]) -> Grouped | None:
    """Return the steps and codes of groups; None if the values have none."""
    values = to_floats(words, dtype).reshape(shape)
    layout = find_layout(values, dtype) if np.isfinite(values).all() else None
    if layout is None:
        return None
    found = _grouped(layout, values, words, dtype)
    if (
        not layout.lines
        and dtype == torch.float32
        and np.count_nonzero(found.corrections) > _MANY_CORRECTED * values.size
    ):
        # fl(q · s) − fl(z · s) is near a multiple of s, and exact as a line
        other = _grouped(replace(layout, lines=True), values, words, dtype)
        if 2 * np.count_nonzero(other.corrections) < np.count_nonzero(found.corrections):
            found = other
    return found if found.escaped.size <= _MAX_ESCAPES * values.size else None


def _grouped(layout: Layout, values: Floats, words: Array, dtype: torch.dtype) -> Grouped:
    """Return steps, codes and corrections in a given layout."""
    codes, steps, offsets, form = _fit_all(layout, values, dtype)
    own = np.ascontiguousarray(layout.rows(words.reshape(values.shape)))
    corrections = np.empty(own.shape, dtype=np.int8)
    groups = np.arange(own.shape[1]) // layout.length
    for part in _parts(*own.shape):
        made = products(form, codes[part], steps[part], offsets[part], groups)
        rounded = to_words(torch.from_numpy(made).to(dtype))
        corrections[part] = _corrections(own[part], rounded.reshape(made.shape))
    away = corrections == ESCAPE
    codes = np.where(away | (own == 0), 0, codes)
    return Grouped(layout, form, codes, steps, offsets, corrections, own == 0, own[away], dtype)


def products(form: int, codes: Array, steps: Floats, offsets: Floats, groups: Array) -> Floats:
    """Return the values of codes, steps and offsets; forged ones may give any values.

    Args:
        groups: For each column of the codes, the column of its step and offset.
    """
    numbers = codes.astype(np.float32)
    with np.errstate(all="ignore"):
        if form == 0:
            return np.asarray(numbers * steps[:, groups])
        return FORMS[form - 1](numbers, steps[:, groups], offsets[:, groups])


def _fit_all(layout: Layout, values: Floats, dtype: torch.dtype) -> tuple[Codes, Floats, Floats, int]:
    """Return codes (rows, values in a row), steps and offsets (rows, groups in a row), and the form."""
    groups = layout.groups(values)
    rows, width = layout.rows(values).shape
    plan = plan_lines(groups) if layout.lines else None
    parts = [_fit(groups[part], plan, dtype) for part in _parts(len(groups), layout.length)]
    codes, first, last, offsets = (np.concatenate(part) for part in zip(*parts, strict=True))
    codes = codes.reshape(rows, -1)[:, :width]
    first, last, offsets = first.reshape(rows, -1), last.reshape(rows, -1), offsets.reshape(rows, -1)
    if plan is not None:
        return codes, as_floats(first), offsets, 1 + plan.form
    return codes, share_digits(first, last), offsets, 0


def _parts(count: int, width: int) -> Iterator[slice]:
    """Yield slices of rows, each with about a chunk of values."""
    size = max(1, _CHUNK // width)
    return (slice(start, start + size) for start in range(0, count, size))


def _fit(groups: Floats, plan: Plan | None, dtype: torch.dtype) -> tuple[Codes, Words, Words, Floats]:
    """Return codes, steps (from, to) and offsets; groups that lie on no grid are fitted by the values that occur twice."""
    codes, first, last, offsets, fits = _fit_once(groups, plan, dtype)
    off = np.flatnonzero(~fits)
    if off.size:
        twice = repeated(groups[off])
        again = _fit_once(np.where(twice, groups[off], np.float32(0)), plan and plan.all_tries, dtype)
        steps = as_floats(again[1])[:, None]
        if plan is None:
            with np.errstate(all="ignore"):
                nearest = groups[off].astype(np.float64) / steps
        else:
            nearest = nearest_codes(plan.form, groups[off], steps, again[3][:, None])
        nearest = np.where(np.abs(nearest) < _MAX_GUESS, np.rint(nearest), 0)
        codes[off] = np.where(twice, again[0], nearest).astype(np.int32)
        first[off], last[off], offsets[off] = again[1:4]
    return codes, first, last, offsets


def _fit_once(groups: Floats, plan: Plan | None, dtype: torch.dtype) -> tuple[Codes, Words, Words, Floats, Mask]:
    if plan is None:
        found = fit_multiples(groups, dtype)
        return found.codes, found.first, found.last, np.zeros(len(groups), dtype=np.float32), found.fits
    line = fit_lines(groups, plan)
    steps = line.steps.view(np.uint32).astype(np.int64)
    return line.codes, steps, steps, line.offsets, line.fits


def _corrections(wanted: Array, made: Array) -> NDArray[np.int8]:
    """Return how many units in the last place values are off; ESCAPE if more than 3, or if the sign differs."""
    sign = wanted.dtype.type(1 << (8 * wanted.dtype.itemsize - 1))
    apart = (wanted & ~sign).astype(np.int64) - (made & ~sign)
    near = (np.abs(apart) < ESCAPE) & ((wanted & sign) == (made & sign))
    return np.where(near | (wanted == 0), np.where(wanted == 0, 0, apart), ESCAPE).astype(np.int8)
