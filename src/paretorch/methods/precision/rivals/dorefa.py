"""DoReFa (Zhou et al., "DoReFa-Net: Training Low Bitwidth Convolutional Neural Networks with Low Bitwidth Gradients",
2016), the weights' part.

    W = c (2 round(n r)/n − 1),   r = tanh(w) / (2 max|tanh(w)|) + ½,   n = 2^k − 1,   round straight through
    k = 1:   W = sign(w) E|w|,   ∂W/∂w := 1

What differs: c. The paper's values fill ±1 whatever the layer's scale, which batch norm undoes; for layers without one,
c keeps the deviation that a layer has at the start (rescale=False: c = 1, as printed). Activations and gradients are
left alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from paretorch.core.attach.sites import Site
from paretorch.core.groups import Grouping
from paretorch.methods.precision.rivals.rival import TINY, Quantized, Rival, deviation, straight_through


@dataclass(frozen=True, kw_only=True)
class DoReFa(Rival):
    """Evenly spaced values of tanh(w), scaled by its largest. rescale: keep each layer's deviation at the start."""

    rescale: bool = True

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "_Squashed":
        if self.rescale and self.bits > 1:
            self.warn_all_zero(site)
        return _Squashed(grouping, self.bits, site.weight, self.rescale)


class _Squashed(Quantized):
    """W = c (2 round(n r)/n − 1), or sign(w) E|w|. There is nothing to decide: s is not used."""

    c: Tensor

    def __init__(self, grouping: Grouping, bits: int, weight: Tensor, rescale: bool) -> None:
        super().__init__(grouping, bits, 0.0, weight.device)
        self.decision.requires_grad_(False)
        self.register_buffer("c", torch.ones((), dtype=torch.float32, device=weight.device))
        if rescale and bits > 1:
            w = weight.detach().to(torch.float32)
            self.c.copy_((deviation(w) / deviation(self(w)).clamp_min(TINY)).clamp_min(TINY))

    def forward(self, weight: Tensor) -> Tensor:
        w = weight.to(torch.float32)
        if self.precision == 1:
            size = w.detach().abs().mean()
            value = torch.where(w.detach() >= 0, size, -size)
            return straight_through(value, w).to(weight.dtype)
        n = 2.0**self.precision - 1.0
        squashed = torch.tanh(w)
        r = squashed / (2.0 * squashed.abs().amax().clamp_min(TINY)) + 0.5
        code = straight_through(torch.round(n * r.detach()), n * r)
        return ((2.0 * code - n) * (self.c / n)).to(weight.dtype)
