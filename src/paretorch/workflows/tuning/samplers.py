"""Optuna samplers that any number of workers share: gradientless descent, its coordinate form, and CMA-ES.

What to do next follows from the trial's number and from the finished trials in the storage: nothing is kept in the
sampler, workers need not know of each other, and one that dies takes nothing with it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from paretorch.errors import ConfigError, MissingExtraError
from paretorch.optim.kernels.bucket import stream_key

if TYPE_CHECKING:
    from cmaes import CMA


def searched_space(study: Study, known: IntersectionSearchSpace | None = None) -> dict[str, BaseDistribution]:
    """The parameters that all finished trials had; those with one value leave nothing to search."""
    space = (known or IntersectionSearchSpace()).calculate(study)
    return {name: distribution for name, distribution in space.items() if not distribution.single()}


def to_unit(value: Any, distribution: BaseDistribution) -> float:
    """A value's place in its range, in log space if the parameter is logarithmic; choices are taken as ordered."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices.index(value) / (len(distribution.choices) - 1)
    numeric = _numeric(distribution)
    low, high = _ends(numeric)
    place = np.log(value) if numeric.log else value
    return float((place - low) / (high - low))


def from_unit(unit: float, distribution: BaseDistribution) -> Any:
    """The value at a place in the range, on the parameter's grid."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[round(unit * (len(distribution.choices) - 1))]
    numeric = _numeric(distribution)
    low, high = _ends(numeric)
    value = low + unit * (high - low)
    value = np.exp(value) if numeric.log else value
    if numeric.step is not None:
        value = numeric.low + round((value - numeric.low) / numeric.step) * numeric.step
    value = min(max(value, numeric.low), numeric.high)
    return int(value) if isinstance(numeric, IntDistribution) else float(value)


def _numeric(distribution: BaseDistribution) -> FloatDistribution | IntDistribution:
    if not isinstance(distribution, FloatDistribution | IntDistribution):
        raise ConfigError(f"A search knows no {type(distribution).__name__}")
    return distribution


def _ends(distribution: FloatDistribution | IntDistribution) -> tuple[float, float]:
    low, high = float(distribution.low), float(distribution.high)
    return (float(np.log(low)), float(np.log(high))) if distribution.log else (low, high)


Point = NDArray[np.float64]


@dataclass(frozen=True)
class GradientlessDescent:
    """Gradientless descent (Golovin et al., 2020, GLD-Search) in the unit cube, and its coordinate form (section 6.4.3).

    A sweep looks around the best point so far at the radii R, R/2, ..., r, one trial each; trial 0 is the start. Large
    radii make it global, small ones local, and none needs to be tuned. CGLD lets each sweep move along one coordinate
    alone, in turn: the right thing when the coordinates contribute independently, as AvaGrad's α and ε do.

    What differs: the centre moves as soon as a better point is known, not at the end of the sweep (which costs about half
    as many trials again on the tables of the tests); and on a grid no point is tried twice.
    """

    widest: float = 0.5
    narrowest: float = 1 / 32
    coordinate: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.narrowest <= self.widest <= 1:
            raise ConfigError(f"Radii are 0 < narrowest <= widest <= 1, not {self.narrowest} and {self.widest}")

    @property
    def radii(self) -> list[float]:
        """R, R/2, R/4, ... down to r."""
        count = int(np.floor(np.log2(self.widest / self.narrowest) + 1e-9)) + 1
        return [self.widest * 0.5**k for k in range(count)]

    def propose(self, trial: int, centre: Point, rng: np.random.Generator, wider: int = 0) -> Point:
        """A point at random in the ball (or on the line) around `centre`, with the radius whose turn it is.

        `wider` doubles the radius so many times, for a grid whose points nearby have all been tried. When a whole line is
        within reach, the next coordinate takes its turn, and after the last of them all move together.
        """
        radius = self.radii[(trial - 1) % len(self.radii)] * 2.0**wider
        dimensions = len(centre)
        used_up = int(max(0.0, np.log2(radius)))
        if self.coordinate and used_up < dimensions:
            axis = ((trial - 1) // len(self.radii) + used_up) % dimensions
            move = np.zeros(dimensions)
            move[axis] = rng.uniform(-radius, radius)
        else:
            direction = rng.normal(size=dimensions)
            move = direction / np.linalg.norm(direction) * radius * rng.random() ** (1 / dimensions)
        return np.clip(centre + move, 0.0, 1.0)


_GENERATION = "cmaes_generation"
_SPREAD = 1 / 6  # of the unit cube, as Optuna has it


class CMAESSampler(optuna.samplers.BaseSampler):
    """CMA-ES (Hansen, 2016) over the parameters that all finished trials had; the first trial is drawn at random.

    Optuna's own sampler pickles its state into the storage and unpickles what it finds there, so a storage from a
    stranger could run code. This one computes its state anew from the finished trials: each has the number of its
    generation as an attribute.

    Args:
        seed: Seed of the draws, which depend on it and on the number of the trial alone.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def reseed_rng(self) -> None:
        """Called by Optuna in each thread of a parallel study: the draws belong to trials, not to workers."""

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The parameters that all finished trials had."""
        return searched_space(study)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """A draw from the distribution that the finished generations lead to."""
        if not search_space:
            return {}
        state = self._replayed(study, search_space)
        study._storage.set_trial_system_attr(trial._trial_id, _GENERATION, state.generation)
        state.reseed_rng(self._key(trial, ""))
        point = state.ask()
        return {name: from_unit(float(u), d) for u, (name, d) in zip(point, search_space.items(), strict=True)}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """At random."""
        independent = optuna.samplers.RandomSampler(seed=self._key(trial, param_name))
        return independent.sample_independent(study, trial, param_name, param_distribution)

    def _key(self, trial: FrozenTrial, what: str) -> int:
        return stream_key(self._seed, trial.number, zlib.crc32(what.encode())) % 2**32

    def _replayed(self, study: Study, space: dict[str, BaseDistribution]) -> CMA:
        from cmaes import CMA

        count = len(space)
        bounds = np.tile([0.0, 1.0], (count, 1))
        state = CMA(mean=np.full(count, 0.5), sigma=_SPREAD, bounds=bounds, seed=self._seed % 2**32)
        sign = 1.0 if study.direction == StudyDirection.MINIMIZE else -1.0
        done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        while len(told := self._generation(done, state, space, sign)) == state.population_size:
            state.tell(told)
        return state

    def _generation(
        self, done: list[FrozenTrial], state: CMA, space: dict[str, BaseDistribution], sign: float
    ) -> list[tuple[Any, float]]:
        """Points and values of the first trials of the generation that the state waits for; what was pruned is worst."""
        rows = [trial for trial in done if trial.system_attrs.get(_GENERATION) == state.generation]
        rows = [trial for trial in rows if set(space) <= set(trial.params)][: state.population_size]
        points = [np.array([to_unit(trial.params[name], d) for name, d in space.items()]) for trial in rows]
        values = [sign * trial.value if trial.value is not None else np.inf for trial in rows]
        worst = max((value for value in values if np.isfinite(value)), default=0.0)
        return [(point, value if np.isfinite(value) else worst) for point, value in zip(points, values, strict=True)]


_ATTEMPTS = 10
_WIDENINGS = 10


class GLDSampler(optuna.samplers.BaseSampler):
    """Gradientless descent over all parameters at once.

    Args:
        seed: of the random proposals, which depend on it and on the number of the trial alone.
        widest, narrowest: the largest and the smallest radius, as parts of a parameter's range (in log space where the
            parameter is logarithmic; categorical choices are taken as ordered).
    """

    _coordinate = False

    def __init__(self, seed: int | None = None, widest: float = 0.5, narrowest: float = 1 / 32) -> None:
        self._descent = GradientlessDescent(widest, narrowest, self._coordinate)
        self._seed = seed
        self._space = IntersectionSearchSpace()

    def reseed_rng(self) -> None:
        """Called by Optuna in each thread of a parallel study: the draws belong to trials, not to workers."""

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The parameters that all finished trials had; those with one value leave nothing to search."""
        return searched_space(study, self._space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """A point around the best so far, if there is one."""
        if len(study.directions) > 1:
            raise ConfigError(
                "Gradientless descent goes down one value: give a study with one direction, or another sampler"
            )
        if not search_space:
            return {}
        tried = [t for t in study.get_trials(deepcopy=False) if all(name in t.params for name in search_space)]
        done = [t for t in tried if t.state == TrialState.COMPLETE]
        if not done:
            return {}
        sign = 1 if study.direction == StudyDirection.MINIMIZE else -1
        best = min(done, key=lambda t: _rank(t, sign))
        centre = np.array([to_unit(best.params[name], d) for name, d in search_space.items()])
        known = {tuple(t.params[name] for name in search_space) for t in tried}
        return self._new_point(trial.number, centre, search_space, known)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The first trial, and parameters that not every trial has: at random."""
        seed = None if self._seed is None else stream_key(self._seed, trial.number, zlib.crc32(param_name.encode()))
        independent = optuna.samplers.RandomSampler(seed=seed)
        return independent.sample_independent(study, trial, param_name, param_distribution)

    def _new_point(
        self, number: int, centre: Point, space: Mapping[str, BaseDistribution], known: set[tuple[Any, ...]]
    ) -> dict[str, Any]:
        # Drawn from the number of the trial: workers with one seed never draw alike, and a resumed search goes on as it
        # would have. On a grid the nearest setting may have been tried already; to try it again would teach nothing.
        rng = np.random.default_rng(None if self._seed is None else (self._seed, number))
        values: dict[str, Any] = {}
        for attempt in range(_ATTEMPTS * _WIDENINGS):
            point = self._descent.propose(number, centre, rng, wider=attempt // _ATTEMPTS)
            values = {name: from_unit(u, d) for u, (name, d) in zip(point, space.items(), strict=True)}
            if tuple(values.values()) not in known:
                break
        return values


class CoordinateGLDSampler(GLDSampler):
    """Gradientless descent along one parameter at a time, in turn (the thesis' CGLD)."""

    _coordinate = True


SAMPLERS: dict[str, Callable[[int], optuna.samplers.BaseSampler]] = {
    "cgld": CoordinateGLDSampler,
    "gld": GLDSampler,
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed),
    "cmaes": CMAESSampler,
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
}


def sampler(name: str, seed: int = 0) -> optuna.samplers.BaseSampler:
    """One of `SAMPLERS`: "cgld", "gld", "tpe", "cmaes", "random"."""
    if name not in SAMPLERS:
        raise ConfigError(f"Unknown sampler {name!r}: choose from {', '.join(SAMPLERS)}")
    if name == "cmaes" and not _have_cmaes():
        raise MissingExtraError("cmaes needs the package cmaes: pip install 'paretorch[tune]'")
    return SAMPLERS[name](seed)


def _have_cmaes() -> bool:
    # Optuna imports it after the first trials, when the work of these would be lost.
    try:
        import cmaes  # noqa: F401
    except ImportError:
        return False
    return True


def _rank(trial: FrozenTrial, sign: int) -> float:
    value = trial.value
    return sign * value if value is not None and np.isfinite(value) else np.inf
