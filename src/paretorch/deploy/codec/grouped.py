"""Values as codes, steps and offsets of groups: the layout found, every group fitted, and what no grid explains.

A value whose product is a few units in the last place off has a correction; norms that are multiplied into weights round them
once more. Any other value that is not on the grid of its group is an escape: it is stored as it is. So every value comes back
exactly, and a few outliers do no harm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from paretorch.deploy.codec.entropy import Array
from paretorch.deploy.codec.layouts import Layout, find_layout, repeated
from paretorch.deploy.codec.lines import FORMS, Plan, fit_lines, nearest_codes, plan_lines
from paretorch.deploy.codec.multiples import Codes, Floats, Mask, Words, as_floats, fit_multiples, share_digits
from paretorch.deploy.codec.words import to_floats, to_words

ESCAPE = 4  # in place of a correction
_CHUNK = 1 << 20  # values fitted at once
_WIDEST = 1 << 11  # |c| of a value that other values of its group have not confirmed
_MANY_CORRECTED = 0.02  # of all values: enough to look for another form
_MOST_ESCAPES = 0.25  # of all values


@dataclass(frozen=True, eq=False)
class Grouped:
    """Codes and corrections (rows, values in a row), steps and offsets (rows, groups in a row).

    Args:
        form: 0: w = fl(c · s). Else the number of a form of `lines`, from 1 on, and then a value of zero has no code.
        zeros: Which values are zero.
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
    """Return steps and codes of groups, if the values have some; None if not."""
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
    return found if found.escaped.size <= _MOST_ESCAPES * values.size else None


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
    """Return the values that codes, steps and offsets give; forged ones may give anything.

    Args:
        groups: Of each column of the codes, the column of its step and offset.
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
    """Yield slices of so many rows that a chunk of values is worked on at once."""
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
        nearest = np.where(np.abs(nearest) < _WIDEST, np.rint(nearest), 0)
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
    """Return by how many units in the last place values are off; ESCAPE if by more than 3, or if the sign differs."""
    sign = wanted.dtype.type(1 << (8 * wanted.dtype.itemsize - 1))
    apart = (wanted & ~sign).astype(np.int64) - (made & ~sign)
    near = (np.abs(apart) < ESCAPE) & ((wanted & sign) == (made & sign))
    return np.where(near | (wanted == 0), np.where(wanted == 0, 0, apart), ESCAPE).astype(np.int8)
