"""Groups of values on lines of their own, w = s · q + o with whole numbers q and any offset o, for all groups at once.

Values that are not zero are sorted. The least gap between two of them is m · s with a small m, which gives the codes q. The last
digits of step and offset depend on how the product and the sum were rounded: `FORMS` has the usual formulas. Near the fitted
line there are few pairs of fp32 numbers, which are tried with each form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paretorch.deploy.codec.multiples import Codes, Floats, Mask, Wide, shortest_words

Form = Callable[[Floats, Floats, Floats], Floats]
Try = tuple[int, int | None, int | None]  # by how much codes, step and offset differ from the fitted ones

_MAX_CODE = 1 << 10
_MAX_GAP = 8  # steps between the two nearest values of a group
_ERROR = 4.0 * 2.0**-24  # of a value, relative to the largest of its group
_REACH = 3  # the largest error of a step or an offset, in units in the last place
_SAMPLE = 128  # groups by which the form is chosen
_BITS = np.int64(0x7FFFFFFF)


def times_plus(codes: Floats, steps: Floats, offsets: Floats) -> Floats:
    """w = fl(fl(q · s) + o)."""
    return np.asarray(codes * steps + offsets)


def fused(codes: Floats, steps: Floats, offsets: Floats) -> Floats:
    """w = fl(q · s + o), rounded once, as a fused multiply-add does."""
    wide = codes.astype(np.float64) * steps.astype(np.float64) + offsets.astype(np.float64)
    return np.asarray(wide, dtype=np.float32)


def minus_times(codes: Floats, steps: Floats, offsets: Floats) -> Floats:
    """w = fl(fl(q − z) · s), for any number z."""
    return np.asarray((codes - offsets) * steps)


def times_minus(codes: Floats, steps: Floats, offsets: Floats) -> Floats:
    """w = fl(fl(q · s) − fl(z · s)), for a whole number z."""
    return np.asarray(codes * steps - offsets * steps)


# The position of a form is its number in the file: append only.
FORMS: tuple[Form, ...] = (times_minus, times_plus, fused, minus_times)


def nearest_codes(form: int, values: Floats, steps: Floats, offsets: Floats) -> Wide:
    """Return the codes of values before rounding them to whole numbers; not finite if a step is 0."""
    with np.errstate(all="ignore"):
        if FORMS[form] in (times_plus, fused):
            return np.asarray((values.astype(np.float64) - offsets) / steps)
        return np.asarray(values.astype(np.float64) / steps + offsets)


@dataclass(frozen=True)
class Plan:
    """A form, and the tries that found lines in a sample."""

    form: int
    tries: tuple[Try, ...]
    middle: int = 1

    @property
    def all_tries(self) -> Plan:
        """The same form with every try, for groups whose least code is unknown."""
        return replace(self, tries=tuple(_tries(self.form, self.middle)))


@dataclass(frozen=True, eq=False)
class Lines:
    """w = form(codes, steps, offsets), group by group; values that are zero have no code."""

    form: int
    codes: Codes
    steps: Floats
    offsets: Floats
    fits: Mask
    exact: Mask


def fit_codes(values: Floats) -> tuple[Codes, Wide, Wide, Mask]:
    """Return codes from 0 on, slopes and least values of groups (groups, values), and which groups lie on a line."""
    wide = values.astype(np.float64)
    ordered = np.sort(np.where(values == 0, np.inf, wide), axis=1)
    with np.errstate(invalid="ignore"):
        gaps = np.diff(ordered, axis=1)
    gap = np.where((gaps > 0) & (gaps < np.inf), gaps, np.inf).min(1, initial=np.inf)
    base = np.where(np.isfinite(ordered[:, 0]), ordered[:, 0], 0.0)
    last = np.where(np.isfinite(ordered), ordered, -np.inf).max(1)
    reach = np.where(np.isfinite(last), last - base, 0.0)
    error = _ERROR * np.maximum(np.abs(base), np.abs(base + reach))
    rise = np.where(values == 0, 0.0, wide - base[:, None])
    codes, slope = np.zeros(values.shape, dtype=np.int32), np.where(reach == 0, np.abs(base), 0.0)
    fits = reach == 0  # one value: any step fits
    left = np.flatnonzero(reach > 0)
    for m in range(1, _MAX_GAP + 1):
        top = np.rint(reach[left] / gap[left] * m)
        left, top = left[top <= _MAX_CODE], top[top <= _MAX_CODE]
        if not left.size:
            break
        found = reach[left] / top
        whole = np.rint(rise[left] / found[:, None])
        off = np.abs(rise[left] - whole * found[:, None]).max(1)
        good = (off <= 2 * error[left]) & (8 * error[left] < found)
        codes[left[good]], slope[left[good]], fits[left[good]] = whole[good].astype(np.int32), found[good], True
        left = left[~good]
    return codes, slope, base, fits


def fit_lines(values: Floats, plan: Plan | None = None) -> Lines:
    """Return the line of each group.

    Args:
        plan: Form and tries from `plan_lines`. Default: found from these groups.
    """
    fitted = fit_codes(values)
    plan = plan_lines(values) if plan is None else plan
    found, _ = _solve(plan, values, *fitted[:3])
    return replace(found, fits=fitted[3], exact=found.exact & fitted[3])


def plan_lines(values: Floats) -> Plan:
    """Return the form with the most exact groups in a sample, and tries like those that succeeded, most successful first."""
    some = values[:: max(1, len(values) // _SAMPLE)]
    codes, slope, base, fits = fit_codes(some)
    some, codes, slope, base = some[fits], codes[fits], slope[fits], base[fits]
    middle = 1 << max(int(codes.max(initial=1)).bit_length() - 1, 0)
    best, most = Plan(0, ((0, 0, 0),)), 0
    for form in range(len(FORMS)):
        _, hits = _solve(Plan(form, tuple(_tries(form, middle))), some, codes, slope, base)
        if sum(hits.values()) > most:
            most, shifts = sum(hits.values()), {one[0] for one in hits}
            tries = (one for one in _tries(form, middle) if one[0] in shifts)
            best = Plan(form, tuple(sorted(tries, key=lambda one: -hits.get(one, 0))), middle)
    return best


def _solve(plan: Plan, values: Floats, codes: Codes, slope: Wide, base: Wide) -> tuple[Lines, dict[Try, int]]:
    """Try steps and offsets near the fitted line until all values of a group are exact; count the successes of each try."""
    form, hits = plan.form, dict[Try, int]()
    best, steps, offsets = codes.copy(), slope.astype(np.float32), _offset(form, base, slope)
    exact = np.zeros(len(values), dtype=bool)
    left = np.arange(len(values))
    for one in plan.tries:
        if not left.size:
            break
        shift, step_off, offset_off = one
        own = codes[left] + shift
        step = _neighbour(slope[left].astype(np.float32), step_off)
        offset = _offset(form, base[left] - shift * slope[left], step.astype(np.float64))
        offset = _neighbour(offset, offset_off)
        with np.errstate(all="ignore"):
            made = FORMS[form](own.astype(np.float32), step[:, None], offset[:, None])
        good = ((made == values[left]) | (values[left] == 0)).all(1)
        hit = left[good]
        best[hit], steps[hit], offsets[hit], exact[hit] = own[good], step[good], offset[good], True
        left = left[~good]
        if hit.size:
            hits[one] = hit.size
    return Lines(form, best, steps, offsets, exact, exact), hits


def _offset(form: int, base: Wide, slope: Wide) -> Floats:
    """Return the offset in the form's own unit: a value, or a number of steps."""
    if FORMS[form] in (times_plus, fused):
        return np.asarray(base, dtype=np.float32)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        zero = np.where(slope > 0, -base / slope, 0.0)
        return np.asarray(np.rint(zero) if FORMS[form] is times_minus else zero, dtype=np.float32)


def _tries(form: int, middle: int) -> Iterator[Try]:
    """Yield differences of codes, step and offset from the fitted ones, likely ones first; None: the one with few digits.

    The least value of a group need not have the code 0, and quantizers count from 0 or from −2**(bits − 1).
    """
    near: list[int | None] = [None, 0, *(sign * i for i in range(1, _REACH + 1) for sign in (1, -1))]
    if FORMS[form] is times_minus:  # the offset follows from the step
        yield from ((shift, step, 0) for shift in range(4) for step in near)
    elif FORMS[form] is minus_times:
        yield from ((0, step, offset) for offset in near for step in near)
    else:
        yield from ((0, step, 0) for step in near)
        shifts = (-middle, 1, 1 - middle, 2, 2 - middle, 3)
        yield from ((shift, step, offset) for shift in shifts for offset in near[:6] for step in near)


def _neighbour(numbers: Floats, units: int | None) -> Floats:
    """Return the fp32 numbers `units` in the last place away; None: the nearby number with the fewest digits."""
    words = np.ascontiguousarray(numbers).view(np.uint32).astype(np.int64)
    sign, size = words & ~_BITS, words & _BITS
    if units is None:
        size = shortest_words(np.maximum(size - _REACH, 0), size + _REACH)
    else:
        size = np.maximum(size + units, 0)
    moved: NDArray[Any] = (sign | size).astype(np.uint32)
    return moved.view(np.float32)
