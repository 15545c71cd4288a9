"""Masks from scores of the weights: what magnitude pruning, DNW and ST-3 have in common.

    s = |w|/σ − τ,   m = 1{s ≥ 0},   τ the quantile of |w|/σ at the sparsity of this step

σ is 1 (or a layer's scale). The decision s is not trained: it is written after each step, so that the plan reads
masks, prices and targets off it as it does for learned masks. τ comes from all scores, of networks above a million
from a fixed sample of each layer, without waiting for the device; at `harden` the target is met exactly. A group's
score is its average.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paretorch.core.groups import Grouping
from paretorch.core.method import Term
from paretorch.core.relaxation import Relaxation
from paretorch.core.step.sample import WHOLE
from paretorch.errors import ConfigError
from paretorch.methods.sparsity.pruning import quantile
from paretorch.methods.sparsity.rivals.rival import Rival, boundary
from paretorch.support.sharded import whole, write

_CAP = 2**14  # scores of a layer, where the network is not read whole
_TINY = 1e-12  # the least |s| after rounding


@dataclass(frozen=True, kw_only=True)
class ScoredRival(Rival):
    """scope: compare magnitudes over the whole network ("global") or within each layer ("layer")."""

    scope: str = "global"

    scalars: ClassVar[tuple[str, ...]] = ("goal",)

    def check(self) -> None:
        super().check()
        if self.scope not in ("global", "layer"):
            raise ConfigError(f'scope={self.scope!r}: use "global" or "layer"')

    @abstractmethod
    def goal(self, step: Tensor, steps: int) -> Tensor:
        """The share of weights to drop at this step."""

    def is_due(self, step: Tensor, steps: int) -> Tensor | None:
        """Whether the masks are renewed at this step; None: at every one."""
        return None

    def schedule(self, term: Term, step: Tensor) -> None:
        goal = self.goal(step, term.steps)
        term.set_scalar("goal", goal)
        self.update_masks(term, goal, self.is_due(step, term.steps))

    def update_masks(self, term: Term, goal: Tensor, due: Tensor | None = None) -> None:
        """Write the masks that the weights of now have at this sparsity, if they are due."""
        members = [r for r in term.relaxations if isinstance(r, ScoredMask)]
        weights = [whole(latent).to(torch.float32) for latent in term.latents()]
        scores = [r.score(weight) for r, weight in zip(members, weights, strict=True)]
        most = WHOLE if term.weights <= WHOLE else _CAP
        samples = [_sample(score, r.grouping, most) for score, r in zip(scores, members, strict=True)]
        if self.scope == "layer":
            cuts = [quantile(*sample, goal) for sample in samples]
        else:
            values, sizes = zip(*samples, strict=True)
            cuts = [quantile(torch.cat(values), torch.cat(sizes), goal)] * len(samples)
        for r, weight, score, cut in zip(members, weights, scores, cuts, strict=True):
            r.update(weight, score, cut, due)

    def round(self, term: Term, factor: float) -> None:
        groups = term.groups()
        for together in [[one] for one in groups] if self.scope == "layer" else [groups]:
            scores = [whole(decision) for decision, *_ in together]
            keep = self.choose(scores, [sizes for *_, sizes in together], factor)
            middle = boundary(scores, keep)
            for (decision, members, _), score, kept in zip(together, scores, keep, strict=True):
                size = (score - middle).abs().clamp_min(_TINY)
                write(decision, torch.where(kept, size, -size))
                for r in members:
                    assert isinstance(r, ScoredMask)
                    r.shift_cut(middle)

    def measure(self, term: Term) -> dict[str, Tensor]:
        return {**super().measure(term), "goal": term.scalar("goal")}


class ScoredMask(Relaxation):
    """W = w ⊙ 1{s ≥ 0}; the gradient reaches kept weights only."""

    kind: ClassVar[str] = "sparsity"

    def __init__(self, grouping: Grouping, device: torch.device) -> None:
        super().__init__(grouping, 0.0, device)
        self.decision.requires_grad_(False)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.survives(self.grid()).to(weight.dtype)

    def score(self, weight: Tensor) -> Tensor:
        """|w|, averaged within each group."""
        return self.grouping.reduce(weight.abs()) / self.grouping.sizes

    def update(self, weight: Tensor, score: Tensor, cut: Tensor, due: Tensor | None) -> None:
        """Take the mask of this step, if one is due."""
        s = score - cut
        write(self.decision, s if due is None else torch.where(due, s, whole(self.decision)))

    def shift_cut(self, by: Tensor) -> None:
        """Rounding has moved τ; for relaxations that compute with it."""

    def keep(self, s: Tensor) -> Tensor | None:
        return self.survives(s)

    def threshold(self) -> Tensor:
        return self.decision.new_zeros(())

    def survives(self, s: Tensor) -> Tensor:
        return self.grouping.expand((s >= 0).to(s.dtype))


def _sample(score: Tensor, grouping: Grouping, most: int) -> tuple[Tensor, Tensor]:
    """Some groups' scores, at most so many, and how many weights each stands for."""
    every = max(1, math.ceil(score.numel() / most))
    while math.gcd(every, 210) > 1:  # prefer no channel and no kernel position
        every += 1
    values, size = score.flatten()[::every], grouping.sizes
    # Filled on the device: a number copied there could not be captured in a CUDA graph.
    sizes = size.flatten()[::every] if isinstance(size, Tensor) else torch.full_like(values, size)
    return values, sizes * (math.prod(grouping.shape) / sizes.sum())
