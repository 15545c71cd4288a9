"""ℓ₀ by hard-concrete gates (Louizos, Welling, Kingma, "Learning Sparse Neural Networks through L0 Regularization",
2018).

    W = w ⊙ z,   z = min(1, max(0, s̄)),   s̄ = σ((log u − log(1 − u) + s)/β) (ζ − γ) + γ,   u ~ U(0, 1)
    price λ Σ P(z ≠ 0) = λ Σ σ(s − β log(−γ/ζ)),   γ = −0.1, ζ = 1.1, β = 2/3;   s is the paper's log α

Without noise, as at test time: z = min(1, max(0, σ(s)(ζ − γ) + γ)). `harden` fixes these gates; `harden_best` draws
some instead.

What differs: one gate a weight by default (the paper's are per unit). With a `target`, the gates with the highest
s̄ are kept; where some of them are at zero, all are raised by the same amount. Where precision is learned too, kept
gates become 1: a grid stays a grid.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paretorch.core.attach.sites import Site
from paretorch.core.groups import Grouping
from paretorch.core.method import Term
from paretorch.methods.sparsity.rivals.rival import Drawn, SteeredRival
from paretorch.support.checks import require_number
from paretorch.support.sharded import whole, write

_GAMMA, _ZETA, _BETA = -0.1, 1.1, 2.0 / 3.0
_LEAST = 0.01  # the least gate of a kept weight, where gates have to be raised


@dataclass(frozen=True, kw_only=True)
class HardConcrete(SteeredRival):
    """Learn stochastic gates, priced by how likely they are open.

    target: share of the selected weights to drop; None: `penalty` decides. penalty: λ, the price of one open gate. steered: λ
    leads to the target, and `penalty` is not used.
    open_at_start: σ(s) at the start, one minus the paper's dropout rate. lr, momentum: of the decisions' SGD.
    """

    penalty: float = 1e-5
    open_at_start: float = 0.9

    def check(self) -> None:
        super().check()
        self.check_training(self.lr, self.momentum, self.penalty)
        hint = "give a probability between 0 and 1, such as 0.9"
        require_number("open_at_start", self.open_at_start, 0.0, math.nextafter(1.0, 0.0), hint, above=True)

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "_Gate":
        start = math.log(self.open_at_start / (1.0 - self.open_at_start))
        return _Gate(grouping, start, site.weight.device, seed, "precision" in together)

    def constant_price(self, term: Term) -> Tensor | None:
        return term.scalars.new_full((), self.penalty) if self.penalty else None

    def kept(self, term: Term) -> Tensor:
        return term.mean(lambda _, s: torch.sigmoid(s - _closed()))

    def round(self, term: Term, factor: float) -> None:
        gates = [r for r in term.relaxations if isinstance(r, _Gate)]
        scores = [r.settled(whole(r.decision)) for r in gates]
        keep = self.choose(scores, [sizes for *_, sizes in term.groups()], factor)
        least = min(
            (float(score[kept].min()) for score, kept in zip(scores, keep, strict=True) if kept.any()), default=1.0
        )
        lift = _LEAST - least if least <= 0.0 else 0.0
        for r, score, kept in zip(gates, scores, keep, strict=True):
            open_gate = torch.ones_like(score) if r.on_grid else (score + lift).clamp(0.0, 1.0)
            write(r.decision, torch.where(kept, open_gate, torch.zeros_like(score)))


class _Gate(Drawn):
    """W = w ⊙ z; once hard, s holds the gates themselves."""

    kind: ClassVar[str] = "sparsity"

    def __init__(self, grouping: Grouping, start: float, device: torch.device, seed: int, on_grid: bool) -> None:
        super().__init__(grouping, start, device, seed, draw=0)
        self.on_grid = on_grid

    def forward(self, weight: Tensor) -> Tensor:
        s = self.grid()
        if self.hard:
            # The decision stays in the graph with a zero gradient: DDP waits for every parameter.
            gate = s.detach() + 0.0 * s if self.training else s
        elif self.training:
            gate = _stretch(torch.sigmoid((self.logistic(self.step) + s) / _BETA)).clamp(0.0, 1.0)
        else:
            gate = _stretch(torch.sigmoid(s)).clamp(0.0, 1.0)
        return weight * self.grouping.expand(gate).to(weight.dtype)

    def settled(self, s: Tensor) -> Tensor:
        """s̄ without noise (draw 0), or of a numbered draw."""
        return _stretch(torch.sigmoid((self.drawn_logistic() + s) / _BETA if int(self.draw) else s))

    def keep(self, s: Tensor) -> Tensor:
        return self.grouping.expand((s > 0).to(s.dtype) if self.hard else torch.sigmoid(s - _closed()))

    def threshold(self) -> Tensor:
        return self.decision.new_full((), math.log(-_GAMMA / _ZETA))

    def survives(self, s: Tensor) -> Tensor:
        return self.grouping.expand((s > 0 if self.hard else _stretch(torch.sigmoid(s)) > 0).to(s.dtype))

    def price_slope(self, s: Tensor) -> Tensor:
        likely = torch.sigmoid(s - _closed())
        return likely * (1.0 - likely)


def _stretch(x: Tensor) -> Tensor:
    return x * (_ZETA - _GAMMA) + _GAMMA


def _closed() -> float:
    """β log(−γ/ζ)."""
    return _BETA * math.log(-_GAMMA / _ZETA)
