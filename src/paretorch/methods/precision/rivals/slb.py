"""SLB (Yang et al., "Searching for Low-Bit Weights in Quantized Neural Networks", 2020).

    W = c Σⱼ Pⱼ vⱼ,   P = softmax(A/τ),   v the 2^k even values from −1 to 1;   in the end W = c v_argmax A

Each weight has one score A for every value it could take; the scores are trained, by the plan's own Adam, while the
temperature τ falls from 1 to `final_temperature` by equal factors, so that the average over values becomes one value.

What differs: c, one per layer and fixed, keeps a layer's scale (the paper has values within ±1 under batch norm); scores
begin where W is about w, so that a pretrained network may be searched from; and the weight itself follows W, so that
fine-tuning goes on from the chosen values, straight through. The paper's second set of batch norm statistics is
`harden(recalibrate=...)`.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Site
from paretorch.core.groups import Broadcast, Grouping
from paretorch.core.method import Term
from paretorch.core.step.optimizers import adam
from paretorch.core.step.schedules import geometric, progress
from paretorch.methods.precision.rivals.rival import (
    TINY,
    Quantized,
    Rival,
    Stack,
    deviation,
    outermost,
    straight_through,
)
from paretorch.support.checks import require_number
from paretorch.support.sharded import whole, write

_WAY = 10.0  # that a score should be able to go: several times as far as the scores of neighbouring values are apart


@dataclass(frozen=True, kw_only=True)
class SLB(Rival):
    """Search the value of every weight.

    final_temperature: τ at the end. anneal: share of the steps until then. lr: of the scores' Adam; None: 1e-3, or more
    where the steps would not suffice to change a weight's value.
    """

    final_temperature: float = 0.1
    anneal: float = 0.9
    lr: float | None = None

    scalars: ClassVar[tuple[str, ...]] = ("temperature",)
    widths: ClassVar[tuple[int, ...]] = (1, 2, 3, 4)

    def check(self) -> None:
        super().check()
        hint = "give a temperature above 0, up to 1"
        require_number("final_temperature", self.final_temperature, 0.0, 1.0, hint, above=True)
        require_number("anneal", self.anneal, 0.0, 1.0, "give a share of the steps, above 0, up to 1", above=True)
        if self.lr is not None:
            require_number("lr", self.lr, 0.0, math.inf, "give a rate of 0 or more, or None")

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "_Searched":
        self.warn_all_zero(site)
        return _Searched(self.bits, site.weight)

    def decisions_optimizer(self, parameters: list[nn.Parameter], steps: int) -> torch.optim.Optimizer:
        return adam(parameters, max(1e-3, _WAY / steps) if self.lr is None else self.lr)

    def schedule(self, term: Term, step: Tensor) -> None:
        term.set_scalar("temperature", geometric(progress(step, self.anneal * term.steps), self.final_temperature))
        for r, latent in zip(term.relaxations, term.latents(), strict=True):
            assert isinstance(r, _Searched)
            write(latent, r.average(r.grid(whole(r.decision))))

    def measure(self, term: Term) -> dict[str, Tensor]:
        return {**super().measure(term), "temperature": term.scalar("temperature")}


class _Searched(Quantized):
    """W = c Σ softmax(s/τ) v while searching; once hard, the nearest value to c v_argmax s plus what w has moved since."""

    c: Tensor
    values: Tensor

    def __init__(self, bits: int, weight: Tensor) -> None:
        shape = weight.shape
        super().__init__(Stack(Broadcast(shape, tuple(shape)), 2**bits), bits, 0.0, weight.device)
        w = weight.detach().to(torch.float32)
        values = torch.linspace(-1.0, 1.0, 2**bits, dtype=torch.float32, device=weight.device)
        self.register_buffer("values", values.view(-1, *(1,) * w.dim()), persistent=False)
        self.register_buffer("c", (outermost(bits) * deviation(w)).clamp_min(TINY))
        # As sharp as this, the average over values is about w (0.23 of a normal layer's size away with 2 bits).
        self.decision.data.copy_(-2.0 * (w / self.c - self.values).square() / values.square().mean())

    def forward(self, weight: Tensor) -> Tensor:
        s = self.settled()
        if not self.hard:
            # The weight stays in the graph with a zero gradient: DDP waits for every parameter.
            return self.average(s).to(weight.dtype) + 0.0 * weight
        chosen = self.c * self.values.flatten()[s.detach().argmax(0)]
        moved = weight.to(torch.float32) - self.average(s)
        last = 2.0**self.precision - 1.0
        place = ((chosen + moved.detach()) / self.c + 1.0) * (last / 2.0)
        value = (2.0 * torch.round(place).clamp(0.0, last) - last) * (self.c / last)
        return straight_through(value, moved).to(weight.dtype)

    def average(self, s: Tensor) -> Tensor:
        return self.c * (torch.softmax(s / self.scalar(0), 0) * self.values).sum(0)
