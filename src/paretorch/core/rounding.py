"""Rounding that lands on a budget exactly, up to one group, ties by index."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paretorch.errors import DivergenceError
from paretorch.support.arithmetic import all_finite, blocks, exact


def keep_best(scores: Sequence[Tensor], sizes: Sequence[Tensor], budget: float) -> list[Tensor]:
    """Keep the highest-scoring groups so that their sizes add up as near to `budget` as whole groups allow; ties by index."""
    if not all(map(all_finite, scores)):
        raise DivergenceError("a decision is no longer finite: lower the learning rate, or check the loss for NaN")
    each = _common(sizes)
    if each is not None and all(score.dtype == torch.float32 for score in scores):
        return _largest(scores, _nearest_of_equals(sum(score.numel() for score in scores), each, budget))
    flat = torch.cat([score.flatten() for score in scores])
    size = torch.cat([one.flatten() for one in sizes])
    order = torch.sort(flat, descending=True, stable=True).indices
    keep = torch.zeros_like(flat, dtype=torch.bool)
    keep[order[: _nearest(exact(size[order]).cumsum(0), budget)]] = True
    return [part.view(score.shape) for part, score in zip(keep.split([s.numel() for s in scores]), scores, strict=True)]


def _common(sizes: Sequence[Tensor]) -> float | None:
    """The size of all groups, if that is one whole number."""
    first = next((float(size.flatten()[0]) for size in sizes if size.numel()), 0.5)
    if not first.is_integer():
        return None
    for size in sizes:
        one_each = size if any(size.stride()) or not size.numel() else size.flatten()[:1]  # of one number, expanded
        if not all(bool((block == first).all()) for block in blocks(one_each)):
            return None
    return first


def _nearest_of_equals(number: int, each: float, budget: float) -> int:
    """`_nearest` of groups of one size."""
    count = min(max(int(budget // each), 0), number)
    if count == number:
        return count
    return count + int((count + 1) * each - budget <= budget - count * each)


def _nearest(taken: Tensor, budget: float) -> int:
    """How many of the first come nearest to the budget, given what they take together; in doubt one more."""
    count = int((taken <= budget).sum())
    if count == len(taken):
        return count
    without = budget - (float(taken[count - 1]) if count else 0.0)
    return count + int(float(taken[count]) - budget <= without)


_DIGIT = 16
"""Bits of a key that are counted in one pass over the values."""


def _largest(scores: Sequence[Tensor], count: int) -> list[Tensor]:
    """Where the `count` largest are, ties by index; block by block, which needs no more memory than the answer."""
    keep = [torch.zeros(score.numel(), dtype=torch.bool, device=score.device) for score in scores]
    if count > 0:
        last, left = _smallest_kept(scores, count)
        for own, score in zip(keep, scores, strict=True):
            place = 0
            for block in blocks(score):
                part = own[place : place + len(block)]
                torch.gt(block, last, out=part)
                place += len(block)
                if left > 0:
                    ties = (block == last).nonzero().flatten()[:left]
                    part[ties] = True
                    left -= len(ties)
    return [own.view(score.shape) for own, score in zip(keep, scores, strict=True)]


def _smallest_kept(scores: Sequence[Tensor], count: int) -> tuple[float, int]:
    """The value of the last of the `count` largest, and how many of this value are among them.

    The bits of a float, read as an integer, are in the order of the floats, once those of negative ones are turned over. Two passes
    count how often each upper half of them occurs, and each lower half behind the upper half that decides.
    """
    device = scores[0].device
    half = 1 << _DIGIT
    upper = torch.zeros(half, dtype=torch.int64, device=device)
    for score in scores:
        for block in blocks(score):
            upper += torch.bincount((_keys(block) >> _DIGIT).add_(half // 2), minlength=half)
    place, count = _from_above(upper, count)
    lower = torch.zeros(half, dtype=torch.int64, device=device)
    for score in scores:
        for block in blocks(score):
            keys = _keys(block)
            lower += torch.bincount(keys[keys >> _DIGIT == place - half // 2] & (half - 1), minlength=half)
    last, count = _from_above(lower, count)
    key = torch.tensor(((place - half // 2) << _DIGIT) + last, dtype=torch.int32)
    return float(_turned(key).view(torch.float32)), count


def _keys(values: Tensor) -> Tensor:
    return _turned((values + 0.0).view(torch.int32))  # there is one zero


def _turned(bits: Tensor) -> Tensor:
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _from_above(counts: Tensor, count: int) -> tuple[int, int]:
    """Where the `count`-th lies, counted from the last place, and how many of that place are among them."""
    beyond = counts.flip(0).cumsum(0)
    place = int((beyond < count).sum())
    return len(counts) - 1 - place, count - (int(beyond[place - 1]) if place else 0)


def raise_levels(
    cost: Callable[[float], float], budget: float, low: float, high: float, rounds: int = 30
) -> tuple[float, float]:
    """Bisect to neighbouring offsets (a, b): cost(a), non-decreasing, is within the budget and cost(b) is above it.

    Levels are fp32: offsets that differ by less than 2⁻³⁰ of the range change none.
    """
    if cost(high) <= budget:
        return high, high
    for _ in range(rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) <= budget else (low, middle)
    return low, high
