"""One search, as a frozen record: a method, how many rounds, which iterate is kept, and a seed."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paretorch.errors import ConfigError
from paretorch.support.checks import require_count, require_number
from paretorch.workflows.tickets.continuous import CS, SequentialCS
from paretorch.workflows.tickets.magnitude import IMP, IMPC
from paretorch.workflows.tickets.rhythm import TicketMethod
from paretorch.workflows.tickets.stochastic import ISS
from paretorch.workflows.tickets.supermask import StochasticSupermask, Supermask

METHODS: dict[str, type[TicketMethod]] = {
    one.name: one for one in (CS, IMP, IMPC, ISS, SequentialCS, Supermask, StochasticSupermask)
}


@dataclass(frozen=True)
class Search:
    """A run of rounds with one setting.

    store: k of the algorithms, in epochs (2, or 0.5): the weights θ̂ of that moment of round 1 are what tickets are
        retrained from; 0 is the initialisation.
    rewind: whether the weights go back to θ̂ before each further round; None: as the algorithm is printed.
    """

    method: TicketMethod
    rounds: int = 5
    store: float = 0.0
    rewind: bool | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self.method.check()
        require_count("rounds", self.rounds, 1, "give the number of rounds, 1 or more")
        require_number("store", self.store, 0.0, float("inf"), "give a number of epochs, 0 or more")
        require_count("seed", self.seed, 0, "give a whole number, 0 or more")
        if not isinstance(self.rewind, bool | None):
            raise ConfigError(f"rewind={self.rewind!r}: give true or false")
        if self.rewind not in (None, self.method.rewinds) and not self.method.may_rewind:
            own = {True: "always rewinds (imp-c does not)", False: "never rewinds"}[self.method.rewinds]
            raise ConfigError(f"rewind={self.rewind!r}: {self.method.name} {own}")
        if self.method.frozen and self.store:
            raise ConfigError(f"store={self.store!r}: {self.method.name} trains no weights, so there is none to store")

    def require_fit(self, epochs: int) -> None:
        """Refuse an iterate that no round of so many epochs has."""
        if self.store > epochs:
            raise ConfigError(f"store={self.store:g}: a round has {epochs} epochs, so store an earlier iterate")

    @property
    def name(self) -> str:
        """Such as "cs-init-0.1-seed0"."""
        return f"{self.method.label}-seed{self.seed}"

    @property
    def rewinds(self) -> bool:
        """Whether the weights go back to θ̂ before each further round."""
        return self.method.rewinds if self.rewind is None else self.rewind

    @property
    def reuses(self) -> bool:
        """Whether a further round is the retraining of the ticket before it, so that one training serves for both."""
        return self.method.fixed and self.rewinds

    def trainings(self) -> int:
        """How many times the recipe's epochs are spent in all."""
        if self.method.frozen:
            return self.rounds
        return self.rounds + 1 if self.reuses else 2 * self.rounds

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON would give them back."""
        return {
            "method": self.method.name,
            "options": dataclasses.asdict(self.method),
            "rounds": self.rounds,
            "store": self.store,
            "rewind": self.rewinds,
            "seed": self.seed,
        }


def search_from(values: Mapping[str, Any]) -> Search:
    """The search that `as_dict` has written."""
    return Search(
        make_method(values["method"], values["options"]),
        values["rounds"],
        values["store"],
        values["rewind"],
        values["seed"],
    )


def make_method(name: str, options: Mapping[str, Any]) -> TicketMethod:
    """The method of that name; an option that it does not have is refused by name."""
    if name not in METHODS:
        raise ConfigError(f"There is no way to search tickets called {name!r}; choose one of {', '.join(METHODS)}.")
    known = [one.name for one in dataclasses.fields(METHODS[name])]
    if unknown := sorted(set(options) - set(known)):
        raise ConfigError(f"{name} has no option {unknown[0]!r}; it has: {', '.join(known)}.")
    return METHODS[name](**options)
