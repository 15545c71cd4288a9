"""Three rules that keep the weights of largest magnitude: at once, little by little, and in the forward pass alone.

`MagnitudePruning` (Han et al., "Learning both Weights and Connections", 2015). Training is dense; then

    m = 1{|w| ≥ τ},   τ the quantile of |w| at the target, over the network or in each layer.

What differs: the original sets τ to a multiple of each layer's standard deviation; here the target is met exactly,
and magnitudes are compared over the whole network by default.

`GradualMagnitude` (Zhu & Gupta, "To prune, or not to prune", 2017).

    s_t = s_f + (s_i − s_f)(1 − (t − t₀)/(nΔt))³   for t = t₀, t₀ + Δt, …, t₀ + nΔt

At these steps the masks become 1{|w| ≥ τ} anew; in between they stay. W = w ⊙ m, so a dropped weight gets no
gradient and keeps its value (but for weight decay): it may come back, as in the authors' implementation.

What differs: one τ for the network unless scope="layer" (the paper's masks are per layer), and the target is met
exactly at `harden`, where the masks are settled for the last time from the scores of the last renewal.

`DNW` ("Discovering Neural Wirings", Wortsman, Farhadi, Rastegari, 2019), for a fixed network.

    W = w ⊙ 1{|w| ≥ τ_k},   ∂W/∂w := 1

τ_k leaves k weights per layer; the gradient reaches all of them, so dropped weights may win back their place.

What differs: scope="global" compares over the network; once hard the masks are fixed and dropped weights get no
gradient.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from paretorch.core.attach.sites import Site
from paretorch.core.groups import Grouping
from paretorch.core.method import Term
from paretorch.core.step.schedules import cubic, progress
from paretorch.errors import ConfigError
from paretorch.methods.sparsity.rivals.rival import LateMask, ScoredMask, ScoredRival
from paretorch.support.checks import require_count, require_number


@dataclass(frozen=True, kw_only=True)
class MagnitudePruning(ScoredRival):
    """Train densely, drop the smallest weights at `harden`.

    target: share of the selected weights to drop. scope: "global" or "layer".
    """

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> LateMask:
        self.require_target()
        return LateMask(grouping, site.weight.device)

    def schedule(self, term: Term, step: Tensor) -> None:
        term.set_scalar("goal", self.goal(step, term.steps))  # until rounding no mask is looked at

    def round(self, term: Term, factor: float) -> None:
        self.update_masks(term, term.scalar("goal"))
        super().round(term, factor)


@dataclass(frozen=True, kw_only=True)
class GradualMagnitude(ScoredRival):
    """Drop the smallest weights little by little while training.

    target: s_f, the share of the selected weights to drop. initial: s_i. scope: "global" or "layer".
    begin, end: shares of the steps between which the sparsity grows. every: Δt, steps between renewals of the masks.
    """

    initial: float = 0.0
    begin: float = 0.0
    end: float = 0.75
    every: int = 100

    def check(self) -> None:
        super().check()
        hint = "give shares of the steps, 0 ≤ begin < end ≤ 1"
        require_number("begin", self.begin, 0.0, 1.0, hint)
        require_number("end", self.end, 0.0, 1.0, hint)
        if not self.begin < self.end:
            raise ConfigError(f"begin={self.begin!r}, end={self.end!r}: {hint}")
        require_count("every", self.every, 1, "give the steps between two renewals of the masks, 1 or more")
        most = self.target if self.target is not None else 1.0
        require_number("initial", self.initial, 0.0, most, "start with a share from 0 to the target")

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> ScoredMask:
        self.require_target()
        return ScoredMask(grouping, site.weight.device)

    def goal(self, step: Tensor, steps: int) -> Tensor:
        first, every, count = self._renewals(steps)
        return cubic(progress(step - first, every * count), self.initial, self.require_target())

    def is_due(self, step: Tensor, steps: int) -> Tensor:
        first, every, count = self._renewals(steps)
        since = step - first
        # The first masks of all, before t₀, have the initial sparsity.
        return (step == 0) | ((since >= 0) & (since <= every * count) & (torch.remainder(since, every) == 0))

    def _renewals(self, steps: int) -> tuple[int, int, int]:
        """t₀, Δt and n; a run that is shorter than Δt has one renewal, at its end."""
        span = max(1, int((self.end - self.begin) * steps))
        every = min(self.every, span)
        return int(self.begin * steps), every, span // every


@dataclass(frozen=True, kw_only=True)
class DNW(ScoredRival):
    """Compute with the largest weights from the first step on, train all of them.

    target: share of the selected weights to drop. scope: "layer" or "global".
    """

    scope: str = "layer"

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "_Through":
        self.require_target()
        return _Through(grouping, site.weight.device)


class _Through(ScoredMask):
    """The value of w ⊙ m, the gradient of w; once hard, the gradient of w ⊙ m."""

    def forward(self, weight: Tensor) -> Tensor:
        if self.hard or not self.training:
            return super().forward(weight)
        return super().forward(weight.detach()) + (weight - weight.detach())
