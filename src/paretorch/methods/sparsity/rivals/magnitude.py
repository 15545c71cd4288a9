"""One-shot magnitude pruning (Han et al., "Learning both Weights and Connections", 2015).

Training is dense; then    m = 1{|w| ≥ τ},   τ the quantile of |w| at the target, over the network or in each layer.

What differs: the original sets τ to a multiple of each layer's standard deviation; here the target is met exactly,
and magnitudes are compared over the whole network by default.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from paretorch.core.attach.sites import Site
from paretorch.core.groups import Grouping
from paretorch.core.method import Term
from paretorch.methods.sparsity.rivals.following import Following, FollowingRival


@dataclass(frozen=True, kw_only=True)
class MagnitudePruning(FollowingRival):
    """Train densely, drop the smallest weights at `harden`.

    target: share of the selected weights to drop. scope: "global" or "layer".
    """

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "_Later":
        self.need_target()
        return _Later(grouping, site.weight.device)

    def goal(self, step: Tensor, steps: int) -> Tensor:
        return torch.full((), self.need_target(), dtype=torch.float32, device=step.device)

    def schedule(self, term: Term, step: Tensor) -> None:
        term.set_scalar("goal", self.goal(step, term.steps))  # until rounding no mask is looked at

    def round(self, term: Term, factor: float) -> None:
        self.follow(term, term.scalar("goal"))
        super().round(term, factor)


class _Later(Following):
    """W = w while searching; w ⊙ m once hard."""

    def forward(self, weight: Tensor) -> Tensor:
        return super().forward(weight) if self.hard else weight

    def keep(self, s: Tensor) -> Tensor | None:
        return self.survives(s) if self.hard else None
