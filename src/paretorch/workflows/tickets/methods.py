"""The ticket searches of chapter 4: by Continuous Sparsification, by magnitude, by sampled masks; and fixed masks.

Each says what a round trains, which ticket (θ̂, m) it gives, and how the next round begins; see `state.TicketMethod`.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import nn

from paretorch.core.attach.sites import Selector, Site
from paretorch.core.compress import compress
from paretorch.core.groups import Grouping
from paretorch.core.method import Term
from paretorch.core.plan import Plan
from paretorch.core.step.optimizers import adam, require_drops
from paretorch.errors import ConfigError
from paretorch.methods.sparsity.continuous import ContinuousSparsification
from paretorch.methods.sparsity.rivals.rival import Rival, ScoredMask
from paretorch.methods.sparsity.rivals.stochastic import StochasticSparsification
from paretorch.support.checks import require_number
from paretorch.workflows.tickets.state import (
    Decisions,
    Masks,
    RoundEnd,
    TicketMethod,
    drop_lowest,
    require_rate,
    write_decisions,
)


@dataclass(frozen=True, kw_only=True)
class FixedMask(Rival):
    """W = θ ⊙ m with the mask m = 1{s ≥ 0} that is given and stays; at first everything is kept.

    Tickets are retrained with it, and IMP trains with it in every round.
    """

    takes_complex: ClassVar[bool] = True

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> ScoredMask:
        return ScoredMask(grouping, site.weight.device)

    def round(self, term: Term, factor: float) -> None:
        """The mask is rounded already."""


def as_decisions(masks: Masks) -> Decisions:
    """The state of fixed masks: s = 1 for what is kept, −1 for what is not."""
    return {name: {"s": torch.where(mask, 1.0, -1.0)} for name, mask in masks.items()}


def hold(model: nn.Module, masks: Masks, exclude: Selector, steps: int) -> Plan:
    """Fix these masks on the model; the plan is hardened, so that its steps cost nothing."""
    plan = compress(model, FixedMask(exclude=exclude), steps=steps)
    write_decisions(model, as_decisions(masks))
    plan.harden()
    return plan


@dataclass(frozen=True, kw_only=True)
class IMP(TicketMethod):
    """Iterative Magnitude Pruning (Algorithm 3; Frankle & Carbin, "The Lottery Ticket Hypothesis", 2019).

        each round     train θ under the mask m, which stays
        ticket         of the remaining weights, the share τ with the smallest |θ| goes: (θ̂, m)
        next round     θ ← θ̂

    τ is a share of the weights that *remain*, and the θ_k of Algorithm 3 is θ̂. With `dense_rate`, convolutions lose
    `rate` and linear layers `dense_rate` (15 and 20 % for Conv-6 in the thesis), each kind compared within itself.

    rate: τ, of all weights, or of convolutions alone where `dense_rate` is given for matrices.
    scope: compare magnitudes over the network (or the kind), "global", or within each layer, "layer".
    """

    rate: float = 0.2
    dense_rate: float | None = None
    scope: str = "global"

    name: ClassVar[str] = "imp"
    varies: ClassVar[str] = "rate"
    rewinds: ClassVar[bool] = True
    may_rewind: ClassVar[bool] = False
    fixed: ClassVar[bool] = True

    def check(self) -> None:
        super().check()
        require_rate("rate", self.rate)
        if self.dense_rate is not None:
            require_rate("dense_rate", self.dense_rate)
        if self.scope not in ("global", "layer"):
            raise ConfigError(f'scope={self.scope!r}: use "global" or "layer"')

    def relaxation(self, exclude: Selector) -> FixedMask:
        return FixedMask(exclude=exclude)

    def ticket(self, end: RoundEnd) -> Masks:
        kept: Masks = {}
        for rate, names in self._pools(end.masks):
            scores = {name: end.weights[name].abs() for name in names}
            kept |= drop_lowest(scores, end.masks, rate)
        return {name: kept[name] for name in end.masks}

    def restart(self, end: RoundEnd) -> Decisions:
        return as_decisions(self.ticket(end))

    def _pools(self, masks: Masks) -> list[tuple[float, list[str]]]:
        """The weights that are compared with each other, and how many of them go."""
        if self.dense_rate is None:
            pools = [(self.rate, list(masks))]
        else:
            matrices = [name for name, mask in masks.items() if mask.dim() == 2]
            others = [name for name in masks if name not in matrices]
            pools = [(rate, names) for rate, names in ((self.rate, others), (self.dense_rate, matrices)) if names]
        if self.scope == "global":
            return pools
        return [(rate, [name]) for rate, names in pools for name in names]


@dataclass(frozen=True, kw_only=True)
class IMPC(IMP):
    """Algorithm 3 without rewinding between the rounds ("IMP, continued")."""

    name: ClassVar[str] = "imp-c"
    rewinds: ClassVar[bool] = False


_DROPPED_SCORE = -1e6  # σ(_GONE) and its slope are 0 in fp32 at every β


@dataclass(frozen=True, kw_only=True)
class CS(TicketMethod):
    """Ticket search with Continuous Sparsification (Algorithm 2).

        each round     W = c · θ ⊙ σ(βs), β from 1 to β_final (Algorithm 1)
        next round     s ← min(β_final · s, s_init), β ← 1; θ goes on, or is rewound to θ̂
        ticket         (θ̂, m = 1{s ≥ 0})

    Algorithm 2 sets β to 1 in the same line: the β that multiplies s is the final one, so that what was dropped stays
    dropped. What differs: the schedule of β within a round (`anneal`, see `ContinuousSparsification`; 1.0 is as printed),
    the factor c (`rescale=False` is as printed), and a floor under s, where σ(s) is exactly 0 already, so that thirty
    rounds do not overflow.

    `init` (s_init) sets the sparsity; all options but `solver` are those of `ContinuousSparsification`.

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
            start="uniform",
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
            name: {**one, "s": (self.final_temperature * one["s"]).clamp(_DROPPED_SCORE, self.init)}
            for name, one in end.decisions.items()
        }


@dataclass(frozen=True, kw_only=True)
class SequentialCS(CS):
    """Sequential CS (section 4.5): drops the share `rate` of the remaining weights after each round, lowest s first.

    The others begin the next round at s_init again.
    """

    rate: float = 0.2

    name: ClassVar[str] = "sequential"
    varies: ClassVar[str] = "rate"

    def check(self) -> None:
        super().check()
        require_rate("rate", self.rate)

    def ticket(self, end: RoundEnd) -> Masks:
        s = {name: one["s"] for name, one in end.decisions.items()}
        return drop_lowest(s, {name: one > _DROPPED_SCORE for name, one in s.items()}, self.rate)

    def restart(self, end: RoundEnd) -> Decisions:
        ticket = self.ticket(end)
        return {
            name: {**one, "s": torch.where(ticket[name], self.init, _DROPPED_SCORE)}
            for name, one in end.decisions.items()
        }


@dataclass(frozen=True, kw_only=True)
class Supermask(CS):
    """A supermask (section 4.5; Zhou et al., "Deconstructing Lottery Tickets", 2019) by Continuous Sparsification.

    The search with θ frozen at its initialisation, by default in a single round. The ticket is not retrained: what counts
    is the masked random network itself.
    """

    name: ClassVar[str] = "supermask"
    may_rewind: ClassVar[bool] = False
    frozen: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class ISS(TicketMethod):
    """Iterative Stochastic Sparsification (Algorithm 4; after Zhou et al., 2019).

        each round     W = θ ⊙ m, m ~ Bernoulli(σ(s)), straight-through gradients
        next round     s ← −∞ where s < s_init (a boolean buffer: `dropped`); the other s go on
        ticket         (θ̂, m), m drawn once

    Algorithm 4 prints σ(βs) in the price, where σ(s) is meant. All options are those of `StochasticSparsification`.
    """

    init: float = 1.0
    penalty: float = 1e-8
    lr: float = 20.0
    momentum: float = 0.0

    name: ClassVar[str] = "iss"
    varies: ClassVar[str] = "init"

    def check(self) -> None:
        require_number("init", self.init, -10.0, 10.0, "give a number from -10 to 10; the thesis uses 1")
        require_number("penalty", self.penalty, 0.0, math.inf, "a price is 0 or more")
        require_number("lr", self.lr, 0.0, math.inf, "give a positive rate; the thesis uses 20 and 100", above=True)
        require_number("momentum", self.momentum, 0.0, 1.0, "give 0 to 1")
        super().check()

    def relaxation(self, exclude: Selector) -> StochasticSparsification:
        return StochasticSparsification(
            init=self.init, penalty=self.penalty, lr=self.lr, momentum=self.momentum, exclude=exclude
        )

    def ticket(self, end: RoundEnd) -> Masks:
        return end.masks

    def restart(self, end: RoundEnd) -> Decisions:
        return {
            name: {**one, "dropped": one["dropped"] | (one["s"] < self.init)} for name, one in end.decisions.items()
        }


@dataclass(frozen=True, kw_only=True)
class StochasticSupermask(ISS):
    """A supermask by Stochastic Sparsification (SS), with the large rate that its s need."""

    lr: float = 100.0

    name: ClassVar[str] = "supermask-stochastic"
    may_rewind: ClassVar[bool] = False
    frozen: ClassVar[bool] = True
