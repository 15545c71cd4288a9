"""Rounding that lands on a budget exactly, up to one group, ties by index."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paretorch.errors import DivergenceError


def keep_best(scores: Sequence[Tensor], sizes: Sequence[Tensor], budget: float) -> list[Tensor]:
    """Keep the highest-scoring groups so that their sizes add up as near to `budget` as whole groups allow."""
    flat = torch.cat([score.flatten() for score in scores]).double()
    if not bool(torch.isfinite(flat).all()):
        raise DivergenceError("a decision is no longer finite: lower the learning rate, or check the loss for NaN")
    size = torch.cat([one.flatten() for one in sizes]).double()
    order = torch.sort(flat, descending=True, stable=True).indices
    taken = torch.cumsum(size[order], 0)
    count = int((taken <= budget).sum())
    if count < len(taken):
        without = budget - (float(taken[count - 1]) if count else 0.0)
        count += int(float(taken[count]) - budget <= without)  # in doubt, keep
    keep = torch.zeros_like(flat, dtype=torch.bool)
    keep[order[:count]] = True
    return [part.view(score.shape) for part, score in zip(keep.split([s.numel() for s in scores]), scores, strict=True)]


def raise_levels(
    cost: Callable[[float], float], budget: float, low: float, high: float, rounds: int = 48
) -> tuple[float, float]:
    """Bisect to neighbouring offsets (a, b): cost(a), non-decreasing, is within the budget and cost(b) is above it."""
    if cost(high) <= budget:
        return high, high
    for _ in range(rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) <= budget else (low, middle)
    return low, high
