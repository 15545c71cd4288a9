"""Stochastic Sparsification, the inner step of ISS (chapter 4, Algorithm 4; after Zhou et al., "Deconstructing Lottery
Tickets", 2019).

    W = w ⊙ m,   m ~ Bernoulli(σ(s)),   ∂m/∂s := σ′(s),   price λ Σ σ(s)

Algorithm 4 prints σ(βs) in the price, where σ(s) is meant. Between rounds, `drop_fallen` drops for good what has s
below its start (the printed s ← −∞: a boolean buffer here). At `harden` a mask is drawn; `harden_best` draws
several.

What differs: eval() computes with the expected mask σ(s). With a `target`, the highest s + log u − log(1 − u) are
kept, which is the same draw with the threshold moved from 0.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paretorch.core.attach.sites import Site
from paretorch.core.groups import Grouping
from paretorch.core.method import Term
from paretorch.core.plan import Plan
from paretorch.methods.sparsity.rivals.rival import Drawn, SteeredRival, sparsity
from paretorch.support.checks import require_number
from paretorch.support.sharded import whole, write

_NEVER = -1e9  # the score of what was dropped for good


@dataclass(frozen=True, kw_only=True)
class StochasticSparsification(SteeredRival):
    """Learn the probability of each weight to be kept, by straight-through gradients.

    target: share of the selected weights to drop; None: as drawn. init: s at the start. penalty: λ, the price of σ(s).
    steered: λ leads to the target, and `penalty` is not used. lr: of the decisions' SGD: 20 for tickets, 100 for
    supermasks in the thesis. momentum: of the same.
    """

    init: float = 1.0
    penalty: float = 1e-8
    lr: float = 20.0
    momentum: float = 0.0

    def check(self) -> None:
        super().check()
        self.check_training(self.lr, self.momentum, self.penalty)
        require_number("init", self.init, -math.inf, math.inf, "give a number, such as 1")

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "_Bernoulli":
        return _Bernoulli(grouping, self.init, site.weight.device, seed)

    def constant_price(self, term: Term) -> Tensor | None:
        return term.scalars.new_full((), self.penalty) if self.penalty else None

    def kept(self, term: Term) -> Tensor:
        return 1.0 - sparsity(term)

    def round(self, term: Term, factor: float) -> None:
        members = [r for r in term.relaxations if isinstance(r, _Bernoulli)]
        scores = [r.drawn(whole(r.decision)) for r in members]
        keep = self.choose(scores, [sizes for *_, sizes in term.groups()], factor)
        for r, kept in zip(members, keep, strict=True):
            write(r.decision, torch.where(kept, 1.0, -1.0))

    def measure(self, term: Term) -> dict[str, Tensor]:
        """The sparsity to be expected; once hard, the one there is."""
        return super().measure(term)


class _Bernoulli(Drawn):
    """W = w ⊙ m; once hard, m = 1{s > 0}."""

    kind: ClassVar[str] = "sparsity"
    dropped: Tensor

    def __init__(self, grouping: Grouping, start: float, device: torch.device, seed: int) -> None:
        super().__init__(grouping, start, device, seed, draw=1)
        self.start = start
        self.register_buffer("dropped", torch.zeros(grouping.grid, dtype=torch.bool, device=device))

    def forward(self, weight: Tensor) -> Tensor:
        s = self.grid()
        likely = self.likely(s)
        if self.hard or self.training:
            drawn = s if self.hard else s + self.logistic(self.step)
            mask = ((drawn > 0) & ~self.dropped).to(s.dtype).detach()
            # Straight through; once hard a zero gradient, so that DDP sees the decision.
            mask = mask + (0.0 * s if self.hard else likely - likely.detach())
        else:
            mask = likely
        return weight * self.grouping.expand(mask).to(weight.dtype)

    def likely(self, s: Tensor) -> Tensor:
        """σ(s), or 0 where the weight was dropped for good."""
        return torch.sigmoid(s) * ~self.dropped

    def drawn(self, s: Tensor) -> Tensor:
        return torch.where(self.dropped, _NEVER, s + self.drawn_logistic())

    def keep(self, s: Tensor) -> Tensor:
        return self.grouping.expand(((s > 0) & ~self.dropped).to(s.dtype) if self.hard else self.likely(s))

    def threshold(self) -> Tensor:
        return self.decision.new_zeros(())

    def survives(self, s: Tensor) -> Tensor:
        return self.keep(s)

    def price_slope(self, s: Tensor) -> Tensor:
        likely = self.likely(s)
        return likely * (1.0 - likely)


def drop_fallen(plan: Plan) -> None:
    """Between the rounds of ISS: drop for good every weight whose s has fallen below its start."""
    for module in plan.model.modules():
        if isinstance(module, _Bernoulli):
            module.dropped |= module.grid(whole(module.decision)) < module.start
