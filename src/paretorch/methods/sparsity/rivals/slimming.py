"""Network Slimming (Liu et al., 2017): weight by weight as in the thesis (section 4.4.1), or channel by channel.

    W = w ⊙ s,   price λ Σ |s|,   s = 1 at the start;   at `harden` the smallest |s| of the network are dropped

The thesis gives every weight a scale of its own, trained with the weights, ℓ₁ alone (λ = 1e-5 for ResNet-20, 1e-6
for VGG-16): ℓ₂ beside it over-regularises.

With group="channel" and an example, a channel has one scale: of the weights that make it, and of γ and β of the norms
behind them, so that it scales what the paper's γ scales; dropped channels are removed at `finalize`.

What differs: s has the plan's own SGD, with a constant rate. A channel pays λ for each weight that it holds, where the
paper's pays λ once: the paper's 1e-4 is about 1e-7 here. Each layer keeps a channel.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Site
from paretorch.core.channels.coupling import Coupling
from paretorch.core.groups import Grouping
from paretorch.core.method import Couples, Term
from paretorch.core.relaxation import Relaxation
from paretorch.core.step.optimizers import sgd
from paretorch.errors import ConfigError
from paretorch.methods.sparsity.rivals.rival import Rival
from paretorch.support.sharded import whole, write

_TINY = 1e-8  # the least |s| of a kept weight


@dataclass(frozen=True, kw_only=True)
class NetworkSlimming(Couples, Rival):
    """Learn a scale for each weight (or channel) under an ℓ₁ price, drop the smallest scales.

    target: share of the selected weights to drop. penalty: λ, by weight. lr, momentum: of the scales' SGD.
    """

    penalty: float = 1e-5
    lr: float = 0.1
    momentum: float = 0.9

    def check(self) -> None:
        super().check()
        self.check_training(self.lr, self.momentum, self.penalty)

    def check_coupling(self, coupling: Coupling) -> None:
        least = coupling.least(self.counts, self.block)
        if 1.0 - self.require_target() < least:
            raise ConfigError(
                f"target={self.target!r}: every layer keeps a channel, so at most {1 - least:.4f} of the weights can go"
            )

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "_Scale":
        self.require_target()
        self.refuse_precision(together)
        return _Scale(grouping, 1.0, site.weight.device)

    def decisions_optimizer(self, parameters: list[nn.Parameter], steps: int) -> torch.optim.Optimizer:
        return sgd(parameters, self.lr, self.momentum)

    def price(self, term: Term) -> Tensor | None:
        return term.scalars.new_full((), self.penalty) if self.penalty else None

    def round(self, term: Term, factor: float) -> None:
        groups = term.groups()
        scales = [whole(decision) for decision, *_ in groups]
        keep = term.keep_best([s.abs() for s in scales], min((1.0 - self.require_target()) * factor, 1.0))
        for (decision, *_), s, kept in zip(groups, scales, keep, strict=True):
            open_scale = torch.where(s.abs() < _TINY, torch.full_like(s, _TINY), s)
            write(decision, torch.where(kept, open_scale, torch.zeros_like(s)))

    def measure(self, term: Term) -> dict[str, Tensor]:
        if term.coupling is not None:
            s = whole(term.decisions()[0])
            return {"sparsity": 1.0 - term.coupling.share(s != 0, self.counts), "scale": s.abs().mean()}
        return {"sparsity": term.mean(lambda _, s: (s == 0).to(s.dtype)), "scale": term.mean(lambda _, s: s.abs())}


class _Scale(Relaxation):
    """W = w ⊙ s; once hard, s is fixed, with zeros."""

    kind: ClassVar[str] = "sparsity"

    def forward(self, weight: Tensor) -> Tensor:
        s = self.grid()
        if self.hard:
            # The decision stays in the graph with a zero gradient: DDP waits for every parameter.
            s = s.detach() + 0.0 * s
        return weight * self.grouping.expand(s).to(weight.dtype)

    def keep(self, s: Tensor) -> Tensor:
        return self.survives(s) if self.hard else self.grouping.expand(s.abs())

    def survives(self, s: Tensor) -> Tensor:
        return self.grouping.expand((s != 0).to(s.dtype))

    def price_slope(self, s: Tensor) -> Tensor:
        return s.sign()
