"""Iterative Stochastic Sparsification (chapter 4, Algorithm 4; after Zhou et al., "Deconstructing Lottery Tickets", 2019).

    each round     W = θ ⊙ m, m ~ Bernoulli(σ(s)), straight-through gradients
    next round     s ← −∞ where s < s_init (a boolean buffer: `dropped`); the other s go on
    ticket         (θ̂, m), m drawn once

Algorithm 4 prints σ(βs) in the price, where σ(s) is meant.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from paretorch.core.attach.sites import Selector
from paretorch.methods.sparsity.rivals.stochastic import StochasticSparsification
from paretorch.support.checks import require_number
from paretorch.workflows.tickets.rhythm import RoundEnd, TicketMethod
from paretorch.workflows.tickets.state import Decisions, Masks


@dataclass(frozen=True, kw_only=True)
class ISS(TicketMethod):
    """Algorithm 4. All options are those of `StochasticSparsification`."""

    init: float = 1.0
    penalty: float = 1e-8
    lr: float = 20.0
    momentum: float = 0.0

    name: ClassVar[str] = "iss"
    varies: ClassVar[str] = "init"

    def check(self) -> None:
        require_number("init", self.init, -10.0, 10.0, "give a number from -10 to 10; the thesis uses 1")
        require_number("penalty", self.penalty, 0.0, math.inf, "a price is 0 or more")
        require_number("lr", self.lr, 0.0, math.inf, "give a positive rate; the thesis uses 20 and 100", above=True)
        require_number("momentum", self.momentum, 0.0, 1.0, "give 0 to 1")
        super().check()

    def relaxation(self, exclude: Selector) -> StochasticSparsification:
        return StochasticSparsification(
            init=self.init, penalty=self.penalty, lr=self.lr, momentum=self.momentum, exclude=exclude
        )

    def ticket(self, end: RoundEnd) -> Masks:
        return end.masks

    def restart(self, end: RoundEnd) -> Decisions:
        return {
            name: {**one, "dropped": one["dropped"] | (one["s"] < self.init)} for name, one in end.decisions.items()
        }


@dataclass(frozen=True, kw_only=True)
class StochasticSupermask(ISS):
    """A supermask by Stochastic Sparsification (SS), with the large rate that its s need."""

    lr: float = 100.0

    name: ClassVar[str] = "supermask-stochastic"
    may_rewind: ClassVar[bool] = False
    frozen: ClassVar[bool] = True
