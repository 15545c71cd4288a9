"""PACT: learned clipping of activations (Choi et al., "PACT: Parameterized Clipping Activation for Quantized Neural Networks",
2018), and the weights of its successor, SAWB (Choi et al., "Accurate and Efficient 2-bit Quantized Neural Networks", 2019).

Weights, by statistics-aware binning:

    W = α (2 round(n (x + 1)/2)/n − 1),   x = w/α clipped to ±1,   n = 2^k − 1,   ∂W/∂w := 1{|w| ≤ α}
    α = c₁ √E[w²] − c₂ E|w|

c₁ and c₂ are fitted once, for each k, to the α of least squared error over several distributions; k = 1 has none.
α follows the weights at every step while searching and is constant once hard.

Activations:

    y = ½(|u| − |u − α| + α), which is u clipped to [0, α];   Q(y) = round(y · (2^k − 1)/α) · α/(2^k − 1)
    ∂Q/∂u := 1{0 ≤ u < α},   ∂Q/∂α := 1{u ≥ α}

From the first step on, each layer has its own α, trained by the user's optimizer with a decay of its own.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from paretorch.core.attach.activations import OutputSite
from paretorch.core.attach.sites import Site
from paretorch.core.groups import Grouping
from paretorch.core.method import Term
from paretorch.edits.quantize_activation import QuantizedActivation
from paretorch.methods.precision.activations import learned_end
from paretorch.methods.precision.activations_fixed import EvenLevels, GivenBits
from paretorch.methods.precision.rivals.rival import TINY, Quantized, Rival, straight_through
from paretorch.support.checks import require_number
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
        code = straight_through(torch.round(position.detach()), position)
        return ((2.0 * code - n) * (alpha / n)).to(weight.dtype)

    def clip(self, weight: Tensor) -> Tensor:
        """α of each group; where the fit would give less than E|w| (a layer of equal weights, say), that."""
        first, second = _COEFFICIENTS[self.precision]
        mean = self.grouping.reduce(weight.abs()) / self.grouping.sizes
        root = (self.grouping.reduce(weight.square()) / self.grouping.sizes).sqrt()
        return torch.maximum(first * root - second * mean, mean).clamp_min(TINY)


@dataclass(frozen=True, kw_only=True)
class PACTActivations(GivenBits):
    """Quantize the outputs of ReLUs to `bits` bits between 0 and a learned α.

    alpha: where α starts. alpha_decay: its weight decay, PACT's 2λ_α.
    """

    alpha: float = 8.0
    alpha_decay: float = 5e-4

    per_layer: ClassVar[frozenset[str]] = frozenset({"bits", "alpha", "alpha_decay"})

    def check(self) -> None:
        super().check()
        require_number("alpha", self.alpha, 0.0, 1e6, "give a positive number", above=True)
        require_number("alpha_decay", self.alpha_decay, 0.0, 1e6, "a weight decay is 0 or more")

    def quantizer(self, site: OutputSite, grouping: Grouping) -> "_Clipped":
        return _Clipped(self, site, grouping)


class _Clipped(EvenLevels):
    """The nearest of 2^k levels from 0 to α, straight through."""

    def __init__(self, method: PACTActivations, site: OutputSite, grouping: Grouping) -> None:
        super().__init__(method.bits, site, grouping)
        self.decay = method.alpha_decay
        self.alpha = nn.Parameter(torch.tensor([method.alpha], dtype=torch.float32, device=site.device))

    def ends(self) -> tuple[Tensor, Tensor]:
        """0 and α."""
        high = learned_end(self.alpha)
        return torch.zeros_like(high), high

    def forward(self, u: Tensor) -> Tensor:
        low, high = self.ends()
        return self.quantized(u, low, high) + self.unused(u)

    def plain(self, inner: nn.Module) -> nn.Module:
        with torch.no_grad():
            return QuantizedActivation(inner, self.steps.clone(), torch.stack(self.ends()))

    def trained(self) -> list[tuple[nn.Parameter, float]]:
        return [(self.alpha, self.decay)]
