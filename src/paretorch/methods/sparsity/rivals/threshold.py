"""Soft threshold reparameterization (STR; Kusupati et al., 2020).

    W = sign(w) · max(|w| − g(s), 0),   g = σ (the logistic function),   one s a layer

Both w and s are trained by the loss; weight decay on s < 0 pulls the thresholds up from nearly zero. `init` and
`decay` decide the sparsity, and each layer finds its own.

What differs: s has the plan's own SGD, with a constant rate. With a `target`, one common amount is added to all
thresholds at `harden`, so that exactly the target is dropped. Once hard, s and the mask are fixed.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Site
from paretorch.core.groups import Group, Grouping
from paretorch.core.method import Term
from paretorch.core.relaxation import Relaxation
from paretorch.core.step.optimizers import sgd
from paretorch.methods.sparsity.rivals.rival import SteeredRival, boundary
from paretorch.support.checks import require_a_group, require_number
from paretorch.support.sharded import whole, write


@dataclass(frozen=True, kw_only=True)
class STR(SteeredRival):
    """Learn each layer's threshold.

    target: share of the selected weights to drop; None: `init` and `decay` decide. group: what shares one threshold.
    init: s at the start. decay: weight decay of s; steered: it leads to the target, and `decay` is not used.
    lr, momentum: of its SGD.
    """

    group: Group = "layer"
    init: float = -10.0
    decay: float = 5e-4

    def check(self) -> None:
        super().check()
        self.check_training(self.lr, self.momentum)
        require_number("init", self.init, -math.inf, math.inf, "give a number, such as -10")
        require_number("decay", self.decay, 0.0, math.inf, "weight decay is 0 or more")

    def check_groups(self, smallest: float, total: float) -> None:
        require_a_group(self.target, 1.0, total)  # groups share a threshold, their weights go one by one

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "_Threshold":
        self.refuse_precision(together)
        return _Threshold(grouping, self.init, site.weight.device)

    def decisions_optimizer(self, parameters: list[nn.Parameter], steps: int) -> torch.optim.Optimizer:
        return sgd(parameters, self.lr, self.momentum, 0.0 if self.steered else self.decay)

    def push(self, relaxation: Relaxation, s: Tensor) -> Tensor:
        return s  # for any size of the group

    def kept(self, term: Term) -> Tensor:
        return 1.0 - _dropped(term)

    def round(self, term: Term, factor: float) -> None:
        margins = _margins(term)
        keep = self.choose(margins, [torch.ones_like(margin) for margin in margins], factor)
        if self.target is not None or factor != 1.0:
            raised = boundary(margins, keep)
            for decision in term.decisions():
                write(decision, torch.logit((torch.sigmoid(whole(decision)) + raised).clamp(1e-20, 1.0 - 1e-6)))
        for r, kept in zip(term.relaxations, keep, strict=True):
            assert isinstance(r, _Threshold)
            r.mask.copy_(kept)

    def measure(self, term: Term) -> dict[str, Tensor]:
        return {"sparsity": _dropped(term), **({"price": term.scalar("price")} if self.steered else {})}


def _dropped(term: Term) -> Tensor:
    return torch.stack([(margin <= 0).sum() for margin in _margins(term)]).sum() / term.weights


def _margins(term: Term) -> list[Tensor]:
    """|w| − g(s): what is left of each weight, or how much is missing; nothing is left of a dropped one."""
    found = []
    for r, latent in zip(term.relaxations, term.latents(), strict=True):
        assert isinstance(r, _Threshold)
        margin = whole(latent).to(torch.float32).abs() - r.level(r.grid(whole(r.decision)))
        found.append(torch.where(r.mask, margin, -margin.abs()) if r.hard else margin)
    return found


class _Threshold(Relaxation):
    """W = sign(w) · max(|w| − g(s), 0); once hard, times the mask."""

    kind: ClassVar[str] = "sparsity"
    mask: Tensor

    def __init__(self, grouping: Grouping, start: float, device: torch.device) -> None:
        super().__init__(grouping, start, device)
        self.register_buffer("mask", torch.ones(grouping.shape, dtype=torch.bool, device=device))

    def forward(self, weight: Tensor) -> Tensor:
        s = self.grid()
        if self.hard:
            # The decision stays in the graph with a zero gradient: DDP waits for every parameter.
            level = self.level(s.detach()) + self.grouping.expand(0.0 * s)
            return _shrink(weight, level) * self.mask
        return _shrink(weight, self.level(s))

    def level(self, s: Tensor) -> Tensor:
        return self.grouping.expand(torch.sigmoid(s))

    def price_slope(self, s: Tensor) -> Tensor:
        return s / self.grouping.sizes  # weight decay of s, which a price multiplies by the size of the group

    def keep(self, s: Tensor) -> Tensor | None:
        return self.survives(s)

    def survives(self, s: Tensor) -> Tensor | None:
        # While searching, this depends on the weight, which is not known here.
        return self.mask.to(torch.float32) if self.hard else None


def _shrink(weight: Tensor, level: Tensor) -> Tensor:
    return (weight.sign() * torch.relu(weight.abs().to(torch.float32) - level)).to(weight.dtype)
