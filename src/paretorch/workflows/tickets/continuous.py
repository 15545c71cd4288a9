"""Ticket search with Continuous Sparsification (chapter 4, Algorithm 2), and its sequential variant (section 4.5).

    each round     W = c · θ ⊙ σ(βs), β from 1 to β_final (Algorithm 1)
    next round     s ← min(β_final · s, s_init), β ← 1; θ goes on, or is rewound to θ̂
    ticket         (θ̂, m = 1{s ≥ 0})

Algorithm 2 sets β to 1 in the same line: the β that multiplies s is the final one, so that what was dropped stays
dropped. What differs: the schedule of β within a round (`anneal`, see `ContinuousSparsification`; 1.0 is as printed), the
factor c (`rescale=False` is as printed), and a floor under s, where σ(s) is exactly 0 already, so that thirty rounds do not overflow.

Sequential CS drops a fixed share of the remaining weights after each round, those with the lowest s; the others begin
the next round at s_init again.

Supermasks (section 4.5; Zhou et al., "Deconstructing Lottery Tickets", 2019) are masks on weights that are never trained: the
search with θ frozen at its initialisation, by default in a single round. The ticket is not retrained: what counts is the
masked random network itself.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from paretorch.core.attach.sites import Selector
from paretorch.core.step.optimizers import adam, require_drops
from paretorch.errors import ConfigError
from paretorch.methods.sparsity.continuous import ContinuousSparsification
from paretorch.workflows.tickets.rhythm import RoundEnd, TicketMethod, require_rate
from paretorch.workflows.tickets.state import Decisions, Masks, drop_lowest

_GONE = -1e6  # σ(_GONE) and its slope are 0 in fp32 at every β


@dataclass(frozen=True, kw_only=True)
class CS(TicketMethod):
    """Algorithm 2. `init` (s_init) sets the sparsity; all options but `solver` are those of `ContinuousSparsification`.

    solver: what trains s: "sgd", or "adam", by which the thesis trains all of Conv-6 (at 3e-4; `momentum` and `drops` are SGD's).
    """

    init: float = 0.0
    penalty: float = 1e-8
    final_temperature: float = 200.0
    anneal: float = 0.75
    gate: str = "sigmoid"
    lr: float = 0.1
    momentum: float = 0.9
    solver: str = "sgd"
    drops: tuple[float, ...] = ()
    rescale: bool = True

    name: ClassVar[str] = "cs"
    varies: ClassVar[str] = "init"

    def __post_init__(self) -> None:
        given: object = self.drops
        if isinstance(given, list):  # from JSON or TOML
            object.__setattr__(self, "drops", tuple(given))

    def check(self) -> None:
        if self.solver not in ("sgd", "adam"):
            raise ConfigError(f'solver={self.solver!r}: use "sgd" or "adam"')
        if self.solver == "adam" and self.drops:
            raise ConfigError(f'drops={self.drops!r} are of SGD: leave them out, or use solver="sgd"')
        require_drops(self.drops)
        super().check()

    def relaxation(self, exclude: Selector) -> ContinuousSparsification:
        return ContinuousSparsification(
            init=self.init,
            penalty=self.penalty,
            final_temperature=self.final_temperature,
            anneal=self.anneal,
            gradient_anneal=self.anneal,  # as printed
            gate=self.gate,
            lr=self.lr,
            momentum=self.momentum,
            drops=self.drops,
            rescale=self.rescale,
            optimizer=partial(adam, lr=self.lr) if self.solver == "adam" else None,
            exclude=exclude,
        )

    def ticket(self, end: RoundEnd) -> Masks:
        return {name: one["s"] >= 0 for name, one in end.decisions.items()}

    def restart(self, end: RoundEnd) -> Decisions:
        return {
            name: {**one, "s": (self.final_temperature * one["s"]).clamp(_GONE, self.init)}
            for name, one in end.decisions.items()
        }


@dataclass(frozen=True, kw_only=True)
class SequentialCS(CS):
    """Drops the share `rate` of the remaining weights a round, lowest s first."""

    rate: float = 0.2

    name: ClassVar[str] = "sequential"
    varies: ClassVar[str] = "rate"

    def check(self) -> None:
        super().check()
        require_rate("rate", self.rate)

    def ticket(self, end: RoundEnd) -> Masks:
        s = {name: one["s"] for name, one in end.decisions.items()}
        return drop_lowest(s, {name: one > _GONE for name, one in s.items()}, self.rate)

    def restart(self, end: RoundEnd) -> Decisions:
        ticket = self.ticket(end)
        return {name: {**one, "s": torch.where(ticket[name], self.init, _GONE)} for name, one in end.decisions.items()}


@dataclass(frozen=True, kw_only=True)
class Supermask(CS):
    """A supermask by Continuous Sparsification."""

    name: ClassVar[str] = "supermask"
    may_rewind: ClassVar[bool] = False
    frozen: ClassVar[bool] = True
