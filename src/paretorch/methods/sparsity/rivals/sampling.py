"""Masks that are drawn: noise in (0, 1), and `harden_best`, which draws several times and keeps the best.

The thesis (section 4.4.1) finds this to be what makes stochastic methods work at high sparsity. A draw is a pure
function of the plan's seed and the draw's number, so that nothing but the number has to be kept.
"""

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from paretorch.core.groups import Grouping
from paretorch.core.plan import Plan
from paretorch.core.relaxation import Relaxation
from paretorch.core.step.noise import uniform
from paretorch.errors import ConfigError
from paretorch.support.checks import require_count


class Drawn(Relaxation):
    """A relaxation with noise while searching, and a numbered draw when it is rounded."""

    differs_in_eval: ClassVar[bool] = True
    draw: Tensor

    def __init__(self, grouping: Grouping, start: float, device: torch.device, seed: int, draw: int) -> None:
        super().__init__(grouping, start, device)
        self.seed = seed
        self.register_buffer("draw", torch.full((), draw, dtype=torch.int64, device=device))

    def logistic(self, step: Tensor) -> Tensor:
        """log u − log(1 − u), u ~ U(0, 1), on the grid of decisions."""
        u = (uniform(torch.Size(self.grouping.grid), step, self.seed) + 1.0) / 2.0
        return torch.logit(u, eps=1e-6)

    def drawn_logistic(self) -> Tensor:
        """The noise of this draw; training steps are numbered upwards from 0, draws downwards from −1."""
        return self.logistic(-self.draw)


def harden_best(
    plan: Plan,
    evaluate: Callable[[nn.Module], float],
    draws: int = 8,
    optimizer: torch.optim.Optimizer | None = None,
) -> float:
    """Draw some masks, score each hardened model by `evaluate` (higher is better), harden with the best; its score."""
    drawn = [module for module in plan.model.modules() if isinstance(module, Drawn)]
    if not drawn:
        raise ConfigError("this plan draws no masks: use harden_best with HardConcrete or StochasticSparsification")
    require_count("draws", draws, 1, "give 1 or more")
    plan.require_finite()
    scores = []
    for number in range(1, draws + 1):
        _take(drawn, number)
        with plan.hardened() as model, torch.no_grad():
            scores.append(float(evaluate(model)))
    if all(math.isnan(score) for score in scores):
        raise ConfigError("evaluate gave nan for every draw: return a number, higher for a better model")
    best = max(range(draws), key=lambda i: -math.inf if math.isnan(scores[i]) else scores[i])
    _take(drawn, best + 1)
    plan.harden(optimizer)
    return scores[best]


def _take(drawn: list[Drawn], number: int) -> None:
    for relaxation in drawn:
        relaxation.draw.fill_(number)
