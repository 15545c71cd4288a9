"""The problem on which Adam does not converge (thesis section 6.5.1), run with the real optimizers.

    min over w in [0, 1] of f(w) = E[f_s(w)],   f_s(w) = 999 w²/2 with probability 1/500, else −w

The expected gradient is f'(w) = (999 w − 499)/500, zero at w* = 499/999 ≈ 0.5. In Adam a rare, large gradient makes its
own step small, so w drifts to 1. The curves are (1/t) Σ_{t' ≤ t} f'(w_{t'})² with β₁ = 0, β₂ = 0.99, ε = 1e-8. What
differs: torch's Adam and AMSGrad correct the bias, which has no effect after some hundred steps, and the learning rates,
which the thesis does not print, are chosen here (for 100,000 steps; they scale as 1/√T).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Adam, Optimizer

from paretorch.errors import ConfigError
from paretorch.optim.annealed_adam import AnnealedAdam
from paretorch.optim.delayed_adam import DelayedAdam

OPTIMUM = 499 / 999
_BETAS = (0.0, 0.99)
_EPS = 1e-8
_RARE_PROBABILITY = 1 / 500

METHODS: dict[str, Callable[[Tensor, int], Optimizer]] = {
    "Adam": lambda w, steps: Adam([w], lr=_rate(0.03, steps), betas=_BETAS, eps=_EPS, foreach=False),
    "AMSGrad": lambda w, steps: Adam([w], lr=_rate(0.3, steps), betas=_BETAS, eps=_EPS, amsgrad=True, foreach=False),
    "Delayed Adam": lambda w, steps: DelayedAdam([w], lr=_rate(0.03, steps), betas=_BETAS, eps=_EPS),
    "Adam, ε = t^1.5": lambda w, steps: AnnealedAdam([w], steps, lr=0.01, betas=_BETAS, eps=1.0, powers=(0.0, 1.5)),
}


@dataclass(frozen=True)
class Curve:
    """The run of one method. Rows of `gradient` and `w` belong to `steps`, columns to seeds."""

    steps: NDArray[np.int64]
    gradient: NDArray[np.float64]
    """Running mean of the squared expected gradient."""
    w: NDArray[np.float64]


def run(
    steps: int = 100_000, seeds: Sequence[int] = range(5), methods: Sequence[str] | None = None, points: int = 100
) -> dict[str, Curve]:
    """Run the methods from w = 0 and return their curves.

    Args:
        steps: length of a run.
        seeds: one run each. All runs are coordinates of one vector, since these methods treat coordinates independently.
        methods: keys of `METHODS`; all by default.
        points: about how many steps, spaced logarithmically, a curve has.
    """
    chosen = list(METHODS) if methods is None else list(methods)
    unknown = [name for name in chosen if name not in METHODS]
    if unknown:
        raise ConfigError(f"Unknown methods {unknown}: choose from {list(METHODS)}")
    if steps < 1 or points < 1 or not len(seeds):
        raise ConfigError("The synthetic problem needs at least one step, one point and one seed")
    is_rare = [torch.rand(steps, generator=torch.Generator().manual_seed(seed)) < _RARE_PROBABILITY for seed in seeds]
    rare = torch.stack(is_rare, dim=1)
    return {name: _curve(METHODS[name], rare, points) for name in chosen}


def _curve(build: Callable[[Tensor, int], Optimizer], rare: Tensor, points: int) -> Curve:
    steps, seeds = rare.shape
    w = torch.zeros(seeds, dtype=torch.float64, requires_grad=True)
    optimizer = build(w, steps)
    recorded = set(np.unique(np.geomspace(1, steps, points).round().astype(np.int64)).tolist())
    total = torch.zeros(seeds, dtype=torch.float64)
    rows: list[tuple[int, Tensor, Tensor]] = []
    for t in range(1, steps + 1):
        with torch.no_grad():
            total += ((999 * w - 499) / 500).square()
            w.grad = torch.where(rare[t - 1], 999 * w, -1.0)
            optimizer.step()
            w.clamp_(0, 1)
        if t in recorded:
            rows.append((t, total / t, w.detach().clone()))
    times, gradients, positions = zip(*rows, strict=True)
    return Curve(np.array(times), torch.stack(gradients).numpy(), torch.stack(positions).numpy())


def _rate(numerator: float, steps: int) -> float:
    """α = α'/√T, as in theorem "dadamconv"."""
    return numerator / math.sqrt(steps)
