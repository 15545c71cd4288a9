"""Groups of values as whole multiples of a step of their own, w = fl(c · s): codes and steps, for all groups at once.

The least magnitude of a group is k · s with a small k. For k = 1, 2, … all values are divided by the step that k gives; the first
k for which all are near whole numbers is chosen. Then every value gives an interval of steps whose product rounds to it. The
intersection of the intervals has few fp32 numbers; the one with the fewest digits is the cheapest to store. A zero point that is
a whole number changes nothing: s · (q − z) is a multiple of s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Wide = NDArray[np.float64]
Mask = NDArray[np.bool_]
Codes = NDArray[np.int32]
Words = NDArray[np.int64]  # bit patterns of positive fp32 numbers, which are in the order of the numbers

MAX_CODE = 1 << 11  # |c|: with larger codes, any values are multiples by chance
_MAX_LEAST = 48  # the largest least code of a group
_AT_ONCE = 1 << 12  # groups whose possible steps are tried together
_SAMPLE = 8  # values of a group that are tested first
# Two values, their ratio and a product each have an error of half a unit in the last place; in half precision, two values have.
TOLERANCE = {torch.float32: 4.0 * 2.0**-24, torch.float16: 2.1 * 2.0**-11, torch.bfloat16: 2.1 * 2.0**-8}
_TOP_CODE = {
    torch.float32: MAX_CODE,
    torch.float16: 1 << 9,
    torch.bfloat16: 1 << 6,
}  # with larger codes, neighbouring values are as near
_COMMON, _FEW = (2, 3, 5, 7), 3  # factors that up to so many different codes have in common by chance
_TOP = np.finfo(np.float32).max


@dataclass(frozen=True, eq=False)
class Multiples:
    """w ≈ codes · step, group by group (groups, values): `fits` up to two roundings, `exact` bit for bit.

    Args:
        first: The bit pattern of the least step that gives the values of a group.
        last: The bit pattern of the largest such step.
    """

    codes: Codes
    first: Words
    last: Words
    fits: Mask
    exact: Mask

    @property
    def steps(self) -> Floats:
        """The step of each group with the fewest digits."""
        return as_floats(shortest_words(self.first, self.last))


def fit_multiples(values: Floats, dtype: torch.dtype = torch.float32, *, enlarge: bool = True) -> Multiples:
    """Return the codes and steps of groups (groups, values); zeros have code 0 and fit any step.

    Args:
        dtype: The dtype that the products were rounded to.
        enlarge: Whether groups of few codes that are near multiples of a step, and no exact ones, may have larger codes that are. Of products that
            were rounded several times, these would be exact by chance.
    """
    sizes = np.abs(values).astype(np.float64)
    guess = _coarsest(sizes, dtype)
    fits = guess > 0
    codes = _round(sizes, guess)
    first, last = _steps(sizes, codes, dtype)
    exact = _matches(sizes, codes, first, last, dtype)
    off = np.flatnonzero(fits & ~exact & _are_few(codes) & enlarge)
    for factor in _COMMON:  # for example, 3s and 9s are no exact multiples of fl(3s)
        if not off.size:
            break
        finer = _round(sizes[off], guess[off] / factor)
        low, high = _steps(sizes[off], finer, dtype)
        good = _matches(sizes[off], finer, low, high, dtype)
        hit = off[good]
        codes[hit], first[hit], last[hit], exact[hit] = finer[good], low[good], high[good], True
        off = off[~good]
    empty = ~sizes.any(1)
    return Multiples(np.where(values < 0, -codes, codes), first, last, fits | empty, exact | empty)


def _are_few(codes: Codes) -> Mask:
    """Return which groups have so few different codes that these may have a factor in common by chance."""
    return np.asarray((np.diff(np.sort(codes, axis=1), axis=1) > 0).sum(1) <= _FEW)


def are_multiples(values: Floats, dtype: torch.dtype = torch.float32) -> Mask:
    """Return which groups (groups, values) are near multiples of some step: as `fit_multiples`, without the codes."""
    sizes = np.abs(values).astype(np.float64)
    return np.asarray((_coarsest(sizes, dtype) > 0) | ~sizes.any(1))


def _coarsest(sizes: Wide, dtype: torch.dtype) -> Wide:
    """Return the largest step per group of which all values are near multiples; 0 if there is none."""
    near, top = TOLERANCE[dtype], _TOP_CODE[dtype]
    least, most = np.where(sizes > 0, sizes, np.inf).min(1, initial=np.inf), sizes.max(1, initial=0.0)
    step = np.where((most > 0) & (most <= top * least) & _are_near(sizes, least, near), least, 0.0)
    left = np.flatnonzero((step == 0) & (most > 0))
    sample = sizes[:, :: max(1, sizes.shape[1] // _SAMPLE)]
    for start in range(0, left.size, _AT_ONCE):
        some = left[start : start + _AT_ONCE]
        ks = np.arange(2, _MAX_LEAST + 1)
        guesses = least[some, None] / ks
        likely = _are_near(sample[some, None], guesses, near) & (most[some, None] <= top * guesses)
        while some.size:  # the smallest k that the sample allows, until all values allow it
            some, guesses, likely = (part[likely.any(1)] for part in (some, guesses, likely))
            first = likely.argmax(1)
            guess = guesses[np.arange(some.size), first]
            fits = _are_near(sizes[some], guess, near)
            step[some[fits]] = guess[fits]
            likely[np.arange(some.size), first] = False
            some, guesses, likely = some[~fits], guesses[~fits], likely[~fits]
    return np.asarray(step)


def _are_near(sizes: Wide, step: Wide, near: float) -> Mask:
    """Return for each step whether all values, along the last axis, are near multiples of it."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = sizes / step[..., None]
        whole = np.rint(ratios)
        return np.asarray((np.abs(ratios - whole) <= near * whole).all(-1))


def _round(sizes: Wide, step: Wide) -> Codes:
    whole = np.rint(sizes / np.where(step > 0, step, np.inf)[:, None])
    return np.asarray(whole, dtype=np.int32)


def _steps(sizes: Wide, codes: Codes, dtype: torch.dtype) -> tuple[Words, Words]:
    """Return the bit patterns of the least and the largest step that give the values of a group."""
    info = torch.finfo(dtype)
    half = np.ldexp(info.eps / 4, np.frexp(np.maximum(sizes, info.smallest_normal))[1])  # of a unit in the last place
    with np.errstate(divide="ignore", invalid="ignore"):
        low = np.where(codes > 0, (sizes - half) / codes, 0.0).max(1, initial=0.0)
        high = np.where(codes > 0, (sizes + half) / codes, np.inf).min(1, initial=np.inf)
    if (
        dtype != torch.float32
    ):  # few digits are often halfway between two numbers, where rounding depends on the last digit
        low, high = low * (1 + 2.0**-30), high * (1 - 2.0**-30)
    coded = codes.any(1)
    return words_within(np.where(coded, low, 1.0), np.where(coded, np.minimum(high, _TOP), 1.0))


def words_within(low: Wide, high: Wide) -> tuple[Words, Words]:
    """Return the bit patterns of the first and last fp32 number in intervals of positive numbers; twice the middle if empty."""
    below, above = low.astype(np.float32), high.astype(np.float32)
    first = below.view(np.uint32).astype(np.int64) + (below.astype(np.float64) < low)
    last = above.view(np.uint32).astype(np.int64) - (above.astype(np.float64) > high)
    middle = ((low + high) / 2).astype(np.float32).view(np.uint32).astype(np.int64)
    empty = first > last
    return np.where(empty, middle, first), np.where(empty, middle, last)


def shortest_words(first: Words, last: Words) -> Words:
    """Return the bit pattern with the most trailing zeros between these two, both included."""
    found = last.copy()
    for zeros in range(1, 24):
        rounded = last >> zeros << zeros
        found = np.where(rounded >= first, rounded, found)
    return found


def as_floats(words: Words) -> Floats:
    return words.astype(np.uint32).view(np.float32)


def share_digits(first: Words, last: Words) -> Floats:
    """Return steps (rows, groups) in these intervals, with equal digits within a row if possible, else with few digits.

    So if the groups of a row have one scale and different bits, their steps differ only by powers of two.
    """
    digits = (1 << 23) - 1
    own = shortest_words(first, last)
    low, high = (first & digits).max(1, keepdims=True), (last & digits).min(1, keepdims=True)
    shared = (low <= high) & (first >> 23 == last >> 23).all(1, keepdims=True)
    return as_floats(np.where(shared, own & ~digits | shortest_words(low, high), own))


def _matches(sizes: Wide, codes: Codes, first: Words, last: Words, dtype: torch.dtype) -> Mask:
    steps = as_floats(shortest_words(first, last))
    with np.errstate(over="ignore", under="ignore"):
        products = codes.astype(np.float32) * steps[:, None]
    if dtype != torch.float32:
        products = torch.from_numpy(products).to(dtype).float().numpy()
    return np.asarray((products == sizes.astype(np.float32)).all(1))
