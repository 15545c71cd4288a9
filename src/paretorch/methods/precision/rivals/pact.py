"""PACT's weights: statistics-aware weight binning (SAWB; Choi et al., "Accurate and Efficient 2-bit Quantized Neural
Networks", 2019, the successor of "PACT: Parameterized Clipping Activation", 2018, which has DoReFa's weights).

    W = α (2 round(n (x + 1)/2)/n − 1),   x = w/α clipped to ±1,   n = 2^k − 1,   ∂W/∂w := 1{|w| ≤ α}
    α = c₁ √E[w²] − c₂ E|w|

c₁ and c₂ are fitted once, for each k, to the α of least squared error over several distributions; k = 1 has none.
α follows the weights at every step while searching and stays once hard. The learned clipping of activations that gives
PACT its name is no part of this: it belongs to the activations.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paretorch.core.attach.sites import Site
from paretorch.core.groups import Grouping
from paretorch.core.method import Term
from paretorch.methods.precision.rivals.rival import TINY, Quantized, Rival, through
from paretorch.support.sharded import whole, write

_COEFFICIENTS = {2: (3.12, 2.064), 3: (7.509, 6.892), 4: (12.68, 12.80), 5: (17.74, 18.64), 8: (31.76, 35.04)}


@dataclass(frozen=True, kw_only=True)
class PACT(Rival):
    """Evenly spaced values up to a clip that follows from the weights' first two moments."""

    widths: ClassVar[tuple[int, ...]] = tuple(_COEFFICIENTS)
    grouped: ClassVar[tuple[str, ...]] = ("layer", "channel")

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "_Binned":
        return _Binned(grouping, self.bits, site.weight.device)

    def schedule(self, term: Term, step: Tensor) -> None:
        for r, latent in zip(term.relaxations, term.latents(), strict=True):
            assert isinstance(r, _Binned)
            write(r.decision, r.clip(whole(latent).to(torch.float32)))


class _Binned(Quantized):
    """W on 2^k even levels within ±s, s the clip α."""

    def __init__(self, grouping: Grouping, bits: int, device: torch.device) -> None:
        super().__init__(grouping, bits, 1.0, device)
        self.decision.requires_grad_(False)

    def forward(self, weight: Tensor) -> Tensor:
        alpha, n = self.grouping.expand(self.grid()), 2.0**self.precision - 1.0
        position = ((weight.to(torch.float32) / alpha).clamp(-1.0, 1.0) + 1.0) * (n / 2.0)
        code = through(torch.round(position.detach()), position)
        return ((2.0 * code - n) * (alpha / n)).to(weight.dtype)

    def clip(self, weight: Tensor) -> Tensor:
        """α of each group; where the fit would give less than E|w| (a layer of equal weights, say), that."""
        first, second = _COEFFICIENTS[self.precision]
        mean = self.grouping.reduce(weight.abs()) / self.grouping.sizes
        root = (self.grouping.reduce(weight.square()) / self.grouping.sizes).sqrt()
        return torch.maximum(first * root - second * mean, mean).clamp_min(TINY)
