"""One search, as a frozen record: a method, how many rounds, which iterate is kept, and a seed."""

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paretorch.errors import ConfigError
from paretorch.support.checks import require_count, require_number
from paretorch.workflows.tickets.methods import CS, IMP, IMPC, ISS, SequentialCS, StochasticSupermask, Supermask
from paretorch.workflows.tickets.state import TicketMethod

METHODS: dict[str, type[TicketMethod]] = {
    one.name: one for one in (CS, IMP, IMPC, ISS, SequentialCS, Supermask, StochasticSupermask)
}

_FIELDS = ("init", "method", "options", "rate", "rewind", "rounds", "seeds", "store", "vary")


@dataclass(frozen=True)
class Search:
    """A run of rounds with one setting.

    store: k of the algorithms, in epochs (2, or 0.5): the weights θ̂ of that moment of round 1 are what tickets are
        retrained from; 0 is the initialisation.
    rewind: whether the weights go back to θ̂ before each further round; None: as the algorithm is printed.
    tag: what the name has to tell it from searches with other options, such as "penalty1e-10".
    """

    method: TicketMethod
    rounds: int = 5
    store: float = 0.0
    rewind: bool | None = None
    seed: int = 0
    tag: str = ""

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
        return "-".join([self.method.label, *([self.tag] if self.tag else []), f"seed{self.seed}"])

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
            **({"tag": self.tag} if self.tag else {}),
        }


def search_from(values: Mapping[str, Any]) -> Search:
    """The search that `as_dict` has written."""
    return Search(
        make_method(values["method"], values["options"]),
        values["rounds"],
        values["store"],
        values["rewind"],
        values["seed"],
        values.get("tag", ""),
    )


def make_method(name: str, options: Mapping[str, Any]) -> TicketMethod:
    """The method of that name; an option that it does not have is refused by name."""
    if name not in METHODS:
        raise ConfigError(f"There is no way to search tickets called {name!r}; choose one of {', '.join(METHODS)}")
    known = [one.name for one in dataclasses.fields(METHODS[name])]
    if unknown := sorted(set(options) - set(known)):
        raise ConfigError(f"{name} has no option {unknown[0]!r}; it has: {', '.join(known)}")
    return METHODS[name](**options)


def make_searches(wanted: dict[str, Any], source: str) -> list[Search]:
    """Every method with every setting and seed.

    `vary` has lists of values of further options; each combination is a search of its own, which its name tells.
    """
    if unknown := ", ".join(sorted(set(wanted) - set(_FIELDS))):
        known = ", ".join(_FIELDS)
        raise ConfigError(f"{source} has unknown fields of a ticket search: {unknown}; known are {known}")
    options = wanted.get("options", {})
    if not isinstance(options, dict):
        raise ConfigError(f"{source}: options of a ticket search should be a table, such as penalty = 1e-8")
    names = [str(each) for each in _listed(wanted.get("method", "cs"))]
    varied: dict[str, list[Any]] = {name: _listed(wanted[name]) for name in ("init", "rate") if name in wanted}
    vary = _table(wanted.get("vary", {}), source)
    _check(names, {**options, **vary}, varied)
    rest = {name: wanted[name] for name in ("store", "rewind") if name in wanted}
    searches = []
    for name in names:
        rounds = wanted.get("rounds")
        rounds = rounds if rounds is not None else 1 if METHODS[name].frozen else 5
        searches += [
            Search(make_method(name, setting), rounds, seed=seed, tag=tag, **rest)
            for tag, more in _combinations(vary)
            for setting in _settings(name, {**options, **more}, varied)
            for seed in _listed(wanted["seeds"])
        ]
    if len({search.name for search in searches}) < len(searches):
        raise ConfigError("Two of the runs would have one name: give each method, init, rate and seed once")
    return searches


def _table(vary: Any, source: str) -> dict[str, list[Any]]:
    if not isinstance(vary, dict) or not all(isinstance(values, list) and values for values in vary.values()):
        raise ConfigError(
            f"{source}: vary of a ticket search should be a table of lists, such as penalty = [1e-10, 1e-8]"
        )
    return vary


def _combinations(vary: dict[str, list[Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Each combination of values, with the part of a name that identifies it."""
    found = []
    for chosen in itertools.product(*vary.values()):
        pairs = dict(zip(vary, chosen, strict=True))
        parts = [f"{name}{value:g}" if isinstance(value, float) else f"{name}{value}" for name, value in pairs.items()]
        found.append(("-".join(parts), pairs))
    return found


def _check(names: list[str], options: dict[str, Any], varied: dict[str, list[Any]]) -> None:
    """Refuse a method that there is not, and what none of the methods could use."""
    known = set[str]().union(*(_options_of(name) for name in names))
    asked = " and ".join(names)
    for each in options:
        if each not in known:
            raise ConfigError(f"{asked}: there is no option {each!r}; there are: {', '.join(sorted(known))}")
    for each in varied:
        if not any(METHODS[name].varies == each for name in names):
            by_init, by_rate = (
                ", ".join(name for name, one in METHODS.items() if one.varies == option) for option in ("init", "rate")
            )
            raise ConfigError(
                f"--{each}: runs of {asked} do not differ by {each}; those of {by_init} differ by init, of {by_rate} by rate"
            )


def _settings(name: str, options: dict[str, Any], varied: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """The options of each run of a method: those that it has, with every value of what its runs differ by."""
    setting = {key: value for key, value in options.items() if key in _options_of(name)}
    own = METHODS[name].varies
    return [{**setting, own: value} for value in varied[own]] if own in varied else [setting]


def _options_of(name: str) -> set[str]:
    return {one.name for one in dataclasses.fields(make_method(name, {}))}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
