"""Iterative Magnitude Pruning (chapter 4, Algorithm 3; Frankle & Carbin, "The Lottery Ticket Hypothesis", 2019).

    each round     train θ under the mask m, which stays
    ticket         of the remaining weights, the share τ with the smallest |θ| goes: (θ̂, m)
    next round     IMP: θ ← θ̂; IMP-C: θ goes on

τ is a share of the weights that *remain*, and the θ_k of Algorithm 3 is θ̂. With `dense_rate`, convolutions lose
`rate` and linear layers `dense_rate` (15 and 20 % for Conv-6 in the thesis), each kind compared within itself.
"""

from dataclasses import dataclass
from typing import ClassVar

from paretorch.core.attach.sites import Selector
from paretorch.errors import ConfigError
from paretorch.workflows.tickets.fixed import FixedMask, as_decisions
from paretorch.workflows.tickets.rhythm import RoundEnd, TicketMethod, require_rate
from paretorch.workflows.tickets.state import Decisions, Masks, drop_lowest


@dataclass(frozen=True, kw_only=True)
class IMP(TicketMethod):
    """Algorithm 3.

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
