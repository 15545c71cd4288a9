"""ST-3 (Vanderschueren & De Vleeschouwer, "Are Straight-Through gradients and Soft-Thresholding all you need for Sparse
Training?", WACV 2023, arXiv 2212.01076).

    W = c · sign(w) · max(|w| − τσ, 0),   ∂W/∂w := 1
    c = 1.01 / (r + 0.01),   r = Σ|w|·1{|w| > τσ} / Σ|w|   over each output channel

τ is the quantile of |w|/σ, over the network, at s_t = s_f − s_f (1 − t/T)³, renewed every step. σ = 1, or with
`sigma` (the paper's ST-3^σ) one over the root of the sum of the layer's dimensions, which spreads the zeros more
evenly. The constants of c are those of the authors' published code; rescale=False leaves it out.

What differs: the target is met exactly at `harden`. There τ, c and the mask are fixed, and W = c · m ⊙ sign(w)
max(|w| − τσ, 0) goes on with the gradient m; the authors write W into w instead. So rounding changes
next to nothing.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from paretorch.core.attach.sites import Site
from paretorch.core.groups import Grouping
from paretorch.core.method import Term
from paretorch.core.step.schedules import cubic, progress
from paretorch.errors import ConfigError
from paretorch.methods.sparsity.rivals.rival import ScoredMask, ScoredRival
from paretorch.support.checks import require_number
from paretorch.support.sharded import whole


@dataclass(frozen=True, kw_only=True)
class ST3(ScoredRival):
    """Soft-threshold the weights in the forward pass, train all of them.

    target: share of the selected weights to drop. sigma: compare magnitudes relative to the layers' usual scale.
    rescale: keep the output channels' mean magnitude. anneal: share of the steps after which the target is reached.
    """

    sigma: bool = False
    rescale: bool = True
    anneal: float = 0.75

    def check(self) -> None:
        super().check()
        if self.group != "weight":
            raise ConfigError(f'group={self.group!r}: ST3 thresholds single weights, so use group="weight"')
        hint = "give the share of the steps until the target, above 0, up to 1"
        require_number("anneal", self.anneal, 0.0, 1.0, hint, above=True)

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "_Soft":
        self.require_target()
        self.refuse_precision(together)
        return _Soft(self, site, grouping)

    def goal(self, step: Tensor, steps: int) -> Tensor:
        return cubic(progress(step, self.anneal * steps), 0.0, self.require_target())

    def round(self, term: Term, factor: float) -> None:
        super().round(term, factor)
        for r, latent in zip(term.relaxations, term.latents(), strict=True):
            assert isinstance(r, _Soft)
            r.renew_scale(whole(latent).to(torch.float32), r.final_cut())


class _Soft(ScoredMask):
    """W = c · S(w, τσ), straight through; once hard, times the mask."""

    cut: Tensor  # τσ
    moved: Tensor  # what rounding adds to it
    scale: Tensor  # c

    def __init__(self, method: ST3, site: Site, grouping: Grouping) -> None:
        super().__init__(grouping, site.weight.device)
        shape = site.weight.shape
        self.sigma = 1.0 / math.sqrt(sum(shape)) if method.sigma else 1.0
        self.rescale = method.rescale
        self.inner = tuple(axis for axis in range(len(shape)) if axis != site.channel_axis)
        channels = [n if axis == site.channel_axis else 1 for axis, n in enumerate(shape)]
        self.register_buffer("cut", torch.zeros(1, dtype=torch.float32, device=site.weight.device))
        self.register_buffer("moved", torch.zeros(1, dtype=torch.float32, device=site.weight.device))
        self.register_buffer("scale", torch.ones(channels, dtype=torch.float32, device=site.weight.device))

    def forward(self, weight: Tensor) -> Tensor:
        own = weight.detach().to(torch.float32)
        cut = self.final_cut() if self.hard else self.cut
        value = own.sign() * torch.relu(own.abs() - cut) * self.scale
        through = weight - weight.detach()
        if self.hard:
            kept = self.survives(self.grid())
            value, through = value * kept, through * kept.to(weight.dtype)
        value = value.to(weight.dtype)
        # Networks may train in evaluation mode, without dropout, as a student of their own.
        return value + through if torch.is_grad_enabled() else value

    def score(self, weight: Tensor) -> Tensor:
        return weight.abs() / self.sigma

    def update(self, weight: Tensor, score: Tensor, cut: Tensor, due: Tensor | None) -> None:
        super().update(weight, score, cut, due)
        self.cut.copy_(cut * self.sigma)
        self.renew_scale(weight, self.cut)

    def shift_cut(self, by: Tensor) -> None:
        self.moved.copy_(by * self.sigma)

    def final_cut(self) -> Tensor:
        return (self.cut + self.moved).clamp_min(0.0)

    def renew_scale(self, weight: Tensor, cut: Tensor) -> None:
        """c for a threshold."""
        if self.rescale:
            size = weight.abs()
            left = (size * (size > cut)).sum(self.inner, keepdim=True)
            ratio = left / size.sum(self.inner, keepdim=True).clamp_min(1e-12)
            self.scale.copy_(1.01 / (ratio + 0.01))
