"""Rounding that lands on a budget exactly, up to one group, ties by index."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paretorch.errors import DivergenceError


def keep_best(scores: Sequence[Tensor], sizes: Sequence[Tensor], budget: float) -> list[Tensor]:
    """Keep the highest-scoring groups so that their sizes add up as near to `budget` as whole groups allow; ties by index."""
    flat = torch.cat([score.flatten() for score in scores])
    if not bool(torch.isfinite(flat).all()):
        raise DivergenceError("a decision is no longer finite: lower the learning rate, or check the loss for NaN")
    size = torch.cat([one.flatten() for one in sizes]).double()
    if bool((size == size[0]).all()):
        keep = _largest(flat, _nearest(size.cumsum(0), budget))
    else:
        order = torch.sort(flat, descending=True, stable=True).indices
        keep = torch.zeros_like(flat, dtype=torch.bool)
        keep[order[: _nearest(size[order].cumsum(0), budget)]] = True
    return [part.view(score.shape) for part, score in zip(keep.split([s.numel() for s in scores]), scores, strict=True)]


def _nearest(taken: Tensor, budget: float) -> int:
    """How many of the first come nearest to the budget, given what they take together; in doubt one more."""
    count = int((taken <= budget).sum())
    if count == len(taken):
        return count
    without = budget - (float(taken[count - 1]) if count else 0.0)
    return count + int(float(taken[count]) - budget <= without)


def _largest(values: Tensor, count: int) -> Tensor:
    """Where the `count` largest are, ties by index; without sorting them all, which takes minutes for a hundred million."""
    if count == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    last = values.kthvalue(len(values) - count + 1).values
    keep = values > last
    keep[(values == last).nonzero().flatten()[: count - int(keep.sum())]] = True
    return keep


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
