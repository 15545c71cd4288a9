"""DSQ (Gong et al., "Differentiable Soft Quantization: Bridging Full-Precision and Low-Bit Neural Networks", 2019).

    Δ = (u − l)/(2^k − 1),   x = w clipped to [l, u],   i = ⌊(x − l)/Δ⌋,   m = l + (i + ½)Δ
    φ(x) = tanh((x − m) ln(2/α − 1)/Δ) / (1 − α)
    W = l + Δ(i + (sgn φ + 1)/2),   ∂W := ∂(l + Δ(i + (φ + 1)/2))

The forward pass is on the grid; the gradient of w, l, u and α is that of the soft staircase, which is as sharp as α is
small. l, u and α are learned, one set per layer, and stay once hard.

What differs: they have the plan's own Adam with a constant rate; α is kept within 0.01 and 0.49 (the paper: below 0.5);
l and u begin where even spacing suits a normal distribution.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Site
from paretorch.core.groups import Grouping
from paretorch.core.method import Term
from paretorch.core.step.optimizers import adam
from paretorch.methods.precision.rivals.rival import TINY, Quantized, Rival, Stack, outermost, straight_through
from paretorch.support.checks import require_number
from paretorch.support.sharded import whole, write

_SHARPEST, _SOFTEST = 0.01, 0.49


@dataclass(frozen=True, kw_only=True)
class DSQ(Rival):
    """Learn the range of the grid and the softness of its gradient. softness: α at the start. lr: of Adam."""

    softness: float = 0.2
    lr: float = 1e-4

    grouped: ClassVar[tuple[str, ...]] = ("layer", "channel")

    def check(self) -> None:
        super().check()
        require_number("softness", self.softness, _SHARPEST, _SOFTEST, f"give α from {_SHARPEST} to {_SOFTEST}")
        require_number("lr", self.lr, 0.0, math.inf, "give a rate of 0 or more")

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "_Soft":
        return _Soft(grouping, self.bits, site.weight, self.softness)

    def decisions_optimizer(self, parameters: list[nn.Parameter], steps: int) -> torch.optim.Optimizer:
        return adam(parameters, self.lr)

    def schedule(self, term: Term, step: Tensor) -> None:
        for decision in term.decisions():
            lower, upper, alpha = whole(decision).unbind(0)
            upper = torch.maximum(upper, lower + TINY)
            write(decision, torch.stack([lower, upper, alpha.clamp(_SHARPEST, _SOFTEST)]))

    def measure(self, term: Term) -> dict[str, Tensor]:
        return {**super().measure(term), "softness": torch.stack([whole(d)[2].mean() for d in term.decisions()]).mean()}


class _Soft(Quantized):
    """W on 2^k even levels from l to u; s holds l, u and α."""

    def __init__(self, grouping: Grouping, bits: int, weight: Tensor, softness: float) -> None:
        super().__init__(Stack(grouping, 3), bits, softness, weight.device)
        self.inner = grouping
        w = weight.detach().to(torch.float32)
        size = outermost(bits) * (grouping.reduce(w.square()) / grouping.sizes).sqrt().clamp_min(TINY)
        self.decision.data[0], self.decision.data[1] = -size, size

    def forward(self, weight: Tensor) -> Tensor:
        lower, upper, alpha = (self.inner.expand(row) for row in self.settled().unbind(0))
        last = 2.0**self.precision - 1.0
        step = (upper - lower) / last
        x = torch.minimum(torch.maximum(weight.to(torch.float32), lower), upper)
        i = torch.floor((x - lower) / step).detach().clamp(0.0, last - 1.0)
        middle = lower + (i + 0.5) * step
        phi = torch.tanh((x - middle) * (torch.log(2.0 / alpha - 1.0) / step)) / (1.0 - alpha)
        soft = lower + step * (i + (phi + 1.0) / 2.0)
        value = (lower + step * (i + (x >= middle))).detach()
        return straight_through(value, soft).to(weight.dtype)
