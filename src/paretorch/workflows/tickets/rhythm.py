"""The rhythm of every ticket search: train a round, read the ticket off, begin the next round.

    attach     `relaxation`: how masks and weights are trained together in each round
    read off   `ticket`: from the end of a round to the masks m of its ticket (θ̂, m)
    go on      `restart`: from the end of a round to the decisions that the next one begins with

The loop around it (rounds, storing θ̂, rewinding, retraining, resuming) is the same for all: see `loop`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from paretorch.core.attach.sites import Selector
from paretorch.core.method import Method
from paretorch.support.checks import require_number
from paretorch.workflows.tickets.state import Decisions, Masks, Weights


@dataclass(frozen=True)
class RoundEnd:
    """The end of a round: weights, decisions as they were trained, and masks as `harden` rounds (or draws) them."""

    weights: Weights
    decisions: Decisions
    masks: Masks


@dataclass(frozen=True, kw_only=True)
class TicketMethod(ABC):
    """Options of a way to search tickets, and the three moments in which it differs from the others."""

    name: ClassVar[str]
    varies: ClassVar[str]  # the option that sets the sparsity, by which runs are told apart
    rewinds: ClassVar[bool] = False  # whether the printed algorithm goes back to θ̂ before each further round
    may_rewind: ClassVar[bool] = True  # whether that is the user's choice
    frozen: ClassVar[bool] = False  # weights stay at their initialisation, and tickets are not retrained
    fixed: ClassVar[bool] = False  # masks do not change within a round, so a rewound round retrains a ticket

    def check(self) -> None:
        """Refuse options that cannot work, before any training."""
        self.relaxation(()).check()

    @abstractmethod
    def relaxation(self, exclude: Selector) -> Method:
        """What is attached to the network in every round."""

    @abstractmethod
    def ticket(self, end: RoundEnd) -> Masks:
        """The ticket that this round has found."""

    @abstractmethod
    def restart(self, end: RoundEnd) -> Decisions:
        """The decisions at the start of the next round."""

    @property
    def label(self) -> str:
        """Such as "cs-init-0.1"."""
        return f"{self.name}-{self.varies}{getattr(self, self.varies):g}"


def require_rate(name: str, value: float) -> None:
    """A share of the remaining weights."""
    hint = "give the share of the remaining weights to drop in each round, above 0 and below 1, such as 0.2"
    require_number(name, value, 0.0, 0.999, hint, above=True)
