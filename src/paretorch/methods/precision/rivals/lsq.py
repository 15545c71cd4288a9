"""LSQ (Esser et al., "Learned Step Size Quantization", 2020).

    W = s round(v),   v = w/s clipped to [−2^(k−1), 2^(k−1) − 1],   round straight through
    ∂W/∂s = round(v) − w/s inside, −2^(k−1) or 2^(k−1) − 1 outside, times g = 1/√(N Q),   Q = 2^(k−1) − 1
    s₀ = 2 E|w| / √Q,   N the weights that share s

What differs: the steps have the plan's own SGD, without decay, and their rate falls by a cosine to 0 at `harden`, where
they settle; with a format of a runtime (`paretorch.core.formats`) its groups share the steps, which are rounded to its numbers; the paper trains them by the network's optimizer. 1 bit has Q = 0, and no step.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Site
from paretorch.core.formats import WeightFormat, check_format, find_format, group_for
from paretorch.core.groups import Grouping
from paretorch.core.method import Term
from paretorch.core.step.optimizers import sgd
from paretorch.core.step.schedules import progress
from paretorch.methods.precision.rivals.rival import TINY, Quantized, Rival, straight_through
from paretorch.support.checks import require_number
from paretorch.support.sharded import whole, write


@dataclass(frozen=True, kw_only=True)
class LSQ(Rival):
    """Learn each layer's step. lr, momentum: of the steps' SGD, at the start. format: of a runtime, in place of bits and group."""

    lr: float = 0.01
    momentum: float = 0.9
    format: str | None = None

    scalars: ClassVar[tuple[str, ...]] = ("rate",)
    widths: ClassVar[tuple[int, ...]] = tuple(range(2, 9))
    grouped: ClassVar[tuple[str, ...]] = ("layer", "channel")

    per_layer: ClassVar[frozenset[str]] = frozenset({"bits", "format"})

    def check(self) -> None:
        super().check()
        check_format(self.format)
        require_number("lr", self.lr, 0.0, math.inf, "give a rate of 0 or more")
        require_number("momentum", self.momentum, 0.0, 1.0, "give a momentum from 0 to 1")

    def for_site(self, site: Site) -> Self:
        own = super().for_site(site)
        if own.format is None:
            return own
        # Set past `check`, which knows the groups that users may ask for.
        return replace(own, bits=min(find_format(own.format).bits, max(self.widths)), group=group_for(own.format, site))

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "_Stepped":
        return _Stepped(grouping, self.bits, site.weight, None if self.format is None else find_format(self.format))

    def decisions_optimizer(self, parameters: list[nn.Parameter], steps: int) -> torch.optim.Optimizer:
        return sgd(parameters, self.lr, self.momentum)

    def schedule(self, term: Term, step: Tensor) -> None:
        term.set_scalar("rate", 0.5 + 0.5 * torch.cos(math.pi * progress(step, term.steps)))
        for decision in term.decisions():
            write(decision, whole(decision).clamp_min(TINY))  # a step of the optimizer too far, and the grid were gone

    def measure(self, term: Term) -> dict[str, Tensor]:
        return {**super().measure(term), "step_size": torch.stack([whole(d).mean() for d in term.decisions()]).mean()}


class _Stepped(Quantized):
    """W = s round(clip(w/s))."""

    def __init__(self, grouping: Grouping, bits: int, weight: Tensor, form: WeightFormat | None = None) -> None:
        super().__init__(grouping, bits if form is None else form.bits, 1.0, weight.device)
        self.stored = form
        self.high = 2.0 ** (bits - 1) - 1.0
        self.low = -self.high - 1.0 if form is None else float(form.low)
        self.slowness = 1.0 / math.sqrt(math.prod(grouping.shape) / math.prod(grouping.grid) * self.high)
        mean = grouping.reduce(weight.detach().to(torch.float32).abs()) / grouping.sizes
        self.decision.data.copy_((2.0 * mean / math.sqrt(self.high)).clamp_min(TINY))

    def forward(self, weight: Tensor) -> Tensor:
        s = self.settled()
        if not self.hard:
            fixed = s.detach()
            s = fixed + (s - fixed) * (self.slowness * self.scalar(0))
        if self.stored is not None:
            if self.stored.is_half:
                return straight_through(self.stored.values(weight.detach(), s), weight)
            s = straight_through(self.stored.cast(s.detach()), s)
        step = self.grouping.expand(s)
        v = (weight.to(torch.float32) / step).clamp(self.low, self.high)
        return (straight_through(torch.round(v.detach()), v) * step).to(weight.dtype)
