"""Discovering neural wirings (Wortsman, Farhadi, Rastegari, 2019), for a fixed network: DNW as a pruning method.

    W = w ⊙ 1{|w| ≥ τ_k},   ∂W/∂w := 1

τ_k leaves k weights a layer; the gradient reaches all of them, so that dropped weights may win back their place.

What differs: scope="global" compares over the network; once hard the masks are fixed and dropped weights get no
gradient.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from paretorch.core.attach.sites import Site
from paretorch.core.groups import Grouping
from paretorch.methods.sparsity.rivals.following import Following, FollowingRival


@dataclass(frozen=True, kw_only=True)
class DNW(FollowingRival):
    """Compute with the largest weights from the first step on, train all of them.

    target: share of the selected weights to drop. scope: "layer" or "global".
    """

    scope: str = "layer"

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "_Through":
        self.need_target()
        return _Through(grouping, site.weight.device)

    def goal(self, step: Tensor, steps: int) -> Tensor:
        return torch.full((), self.need_target(), dtype=torch.float32, device=step.device)


class _Through(Following):
    """The value of w ⊙ m, the gradient of w; once hard, the gradient of w ⊙ m."""

    def forward(self, weight: Tensor) -> Tensor:
        if self.hard or not self.training:
            return super().forward(weight)
        return super().forward(weight.detach()) + (weight - weight.detach())
