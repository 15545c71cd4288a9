"""Supermasks (section 4.5; Zhou et al., "Deconstructing Lottery Tickets", 2019): masks on weights that are never trained.

The search is that of Algorithm 2 or 4 with θ frozen at its initialisation, by default in a single round; the ticket is
not retrained: what counts is the masked random network itself.
"""

from dataclasses import dataclass
from typing import ClassVar

from paretorch.workflows.tickets.continuous import CS
from paretorch.workflows.tickets.stochastic import ISS


@dataclass(frozen=True, kw_only=True)
class Supermask(CS):
    """A supermask by Continuous Sparsification."""

    name: ClassVar[str] = "supermask"
    may_rewind: ClassVar[bool] = False
    frozen: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class StochasticSupermask(ISS):
    """A supermask by Stochastic Sparsification (SS), with the large rate that its s need."""

    lr: float = 100.0

    name: ClassVar[str] = "supermask-stochastic"
    may_rewind: ClassVar[bool] = False
    frozen: ClassVar[bool] = True
