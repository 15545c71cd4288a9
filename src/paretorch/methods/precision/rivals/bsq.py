"""BSQ (Yang et al., "BSQ: Exploring Bit-Level Sparsity for Mixed-Precision Neural Network Quantization", 2021).

    W = δ round(Σ_b 2^b (P_b − N_b)),   round straight through,   P, N within [0, 2]
    price λ Σ_layers (n · bits / n_all) Σ_b ‖[P_b; N_b]‖₂,   n the weights of the layer

Every layer begins with `bits` planes of 0 and 1, δ = max|w|/(2^bits − 1). The planes are trained; the group lasso empties
whole planes. At even intervals W is written out in binary again and the empty planes above and below are dropped: that is
a layer's precision. As in the paper, bits count the planes; a sign comes on top, which the file has and pays for.

What differs: planes stay in place when lower ones are dropped, so δ is never rescaled; a layer may grow one bit beyond
its first, not more; the planes have the plan's own SGD whose rate falls by a cosine; and the weight itself follows
W, so that fine-tuning goes on from there, straight through, with DoReFa-like rounding on the planes' grid.
There is no target: `penalty` decides.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Site
from paretorch.core.groups import Broadcast, Grouping
from paretorch.core.method import Term
from paretorch.core.step.optimizers import sgd
from paretorch.core.step.schedules import progress
from paretorch.methods.precision.rivals.rival import TINY, Quantized, Rival, Stack, straight_through
from paretorch.support.checks import require_count, require_number
from paretorch.support.sharded import whole, write


@dataclass(frozen=True, kw_only=True)
class BSQ(Rival):
    """Learn bit planes, priced by the group lasso.

    bits: of every layer at the start. penalty: λ. adjustments: how often precisions are adjusted. lr, momentum: of SGD.
    """

    bits: int = 8
    penalty: float = 5e-3
    adjustments: int = 10
    lr: float = 0.1
    momentum: float = 0.9

    scalars: ClassVar[tuple[str, ...]] = ("rate",)

    def check(self) -> None:
        super().check()
        require_number("penalty", self.penalty, 0.0, math.inf, "a price is 0 or more")
        require_count("adjustments", self.adjustments, 1, "give how often precisions are adjusted, 1 or more")
        require_number("lr", self.lr, 0.0, math.inf, "give a rate of 0 or more")

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "_Planes":
        self.warn_all_zero(site)
        return _Planes(self.bits, site.weight)

    def decisions_optimizer(self, parameters: list[nn.Parameter], steps: int) -> torch.optim.Optimizer:
        return sgd(parameters, self.lr, self.momentum)

    def schedule(self, term: Term, step: Tensor) -> None:
        term.set_scalar("rate", 0.5 + 0.5 * torch.cos(math.pi * progress(step, term.steps)))
        due = (torch.remainder(step, max(1, term.steps // self.adjustments)) == 0) & (step > 0)
        for r, latent in zip(term.relaxations, term.latents(), strict=True):
            assert isinstance(r, _Planes)
            write(latent, r.hold(due))

    def price(self, term: Term) -> Tensor | None:
        return self.penalty / term.weights * term.scalar("rate")

    def measure(self, term: Term) -> dict[str, Tensor]:
        sums = [r.lasso(whole(r.decision)) for r in term.relaxations if isinstance(r, _Planes)]
        return {**super().measure(term), "lasso": torch.stack(sums).sum() / term.weights}

    def round(self, term: Term, factor: float) -> None:
        for r in term.relaxations:
            assert isinstance(r, _Planes)
            r.hold(torch.ones((), dtype=torch.bool, device=r.active.device))


class _Planes(Quantized):
    """W = δ 2^low round(x / 2^low), x = Σ_b 2^b (P_b − N_b) while searching, w/δ once hard; s holds P, then N."""

    active: Tensor
    powers: Tensor
    delta: Tensor

    def __init__(self, bits: int, weight: Tensor) -> None:
        shape, device = weight.shape, weight.device
        planes = bits + 1  # one more than at the start: planes up to 2 may carry
        super().__init__(Stack(Broadcast(shape, tuple(shape)), 2 * planes), bits, 0.0, device)
        self.planes = planes
        w = weight.detach().to(torch.float32)
        self.register_buffer("delta", (w.abs().max() / (2.0**bits - 1.0)).clamp_min(TINY))
        powers = torch.tensor([2.0**b for b in range(self.planes)], dtype=torch.float32, device=device)
        self.register_buffer("powers", powers.view(-1, *(1,) * w.dim()), persistent=False)
        self.register_buffer("active", torch.ones_like(self.powers))
        binary = self._binary(torch.round(w / self.delta))
        self.decision.data.copy_(binary)
        self.active.copy_(self._used(binary))

    def forward(self, weight: Tensor) -> Tensor:
        s = self.grid()
        if self.hard:
            lasting = weight.to(torch.float32) / self.delta + 0.0 * s.sum(0)
            top = (self.active * self.powers).sum()
            x = torch.minimum(torch.maximum(lasting, -top), top)
        else:
            # A scaled gradient is a scaled rate; the weight stays in the graph since DDP waits for every parameter.
            fixed = s.detach()
            x = self.sum(fixed + (s - fixed) * self.scalar(0)) + 0.0 * weight.to(torch.float32)
        step = self._step()
        code = straight_through(torch.round(x.detach() / step), x / step)
        return (code * (step * self.delta)).to(weight.dtype)

    def hold(self, adjust: Tensor) -> Tensor:
        """Keep planes within [0, 2] and dropped ones at 0; where `adjust`, to binary again. Returns what w is now."""
        s = whole(self.decision).clamp(0.0, 2.0) * self._both(self.active)
        x = self.sum(s)
        code = (torch.round(x / self._step()) * self._step()).clamp(1.0 - 2.0**self.planes, 2.0**self.planes - 1.0)
        planes = self._binary(code)
        write(self.decision, torch.where(adjust, planes, s))
        self.active.copy_(torch.where(adjust, self._used(planes), self.active))
        return self.delta * torch.where(adjust, code, x)

    def sum(self, s: Tensor) -> Tensor:
        """x = Σ_b 2^b (P_b − N_b) over the planes that are left."""
        positive, negative = s.chunk(2)
        return ((positive - negative) * (self.powers * self.active)).sum(0)

    def bits(self, s: Tensor) -> Tensor:
        return self.active.sum().view((1,) * len(self.grouping.shape))

    def lasso(self, s: Tensor) -> Tensor:
        """n · bits · Σ_b ‖[P_b; N_b]‖₂."""
        return self._norms(s).sum() * (math.prod(self.grouping.shape) * self.active.sum())

    def price_slope(self, s: Tensor) -> Tensor:
        return s * self._both(math.prod(self.grouping.shape) * self.active.sum() / self._norms(s).clamp_min(TINY))

    def _norms(self, s: Tensor) -> Tensor:
        squares = s.flatten(1).square().sum(1)
        return (squares[: self.planes] + squares[self.planes :]).sqrt().view(self.powers.shape)

    def limit(self, s: Tensor) -> Tensor | None:
        return self.delta * (self.active * self.powers).sum() if self.hard else None

    def _both(self, value: Tensor) -> Tensor:
        """One number per plane, for P and N."""
        return torch.cat([value, value])

    def _step(self) -> Tensor:
        """2^low of the lowest plane that is left."""
        return torch.where(self.active > 0, self.powers, torch.inf).amin().clamp_max(2.0**self.planes)

    def _binary(self, code: Tensor) -> Tensor:
        """Planes of 0 and 1, of positive and of negative numbers."""
        digits = torch.remainder(torch.floor(code.abs() / self.powers), 2.0)
        return torch.cat([digits * (code > 0), digits * (code < 0)])

    def _used(self, planes: Tensor) -> Tensor:
        """1 from the lowest to the highest plane that is not empty."""
        filled = (planes.flatten(1).amax(1)).view(2, -1).amax(0)
        upward, downward = filled.cumsum(0) > 0, filled.flip(0).cumsum(0).flip(0) > 0
        return (upward & downward).to(torch.float32).view(self.powers.shape)
