"""Gradientless descent as Optuna samplers, so that any number of workers may share one study.

What to do next follows from the trial's number and from the finished trials in the storage: nothing is kept in the
sampler, workers need not know of each other, and one that dies takes nothing with it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from paretorch.errors import ConfigError, MissingExtraError
from paretorch.optim.kernels.rounding import stream_key
from paretorch.workflows.tuning.cmaes import CMAESSampler
from paretorch.workflows.tuning.gld import GradientlessDescent, Point
from paretorch.workflows.tuning.units import from_unit, searched_space, to_unit

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
                "Gradientless descent goes down one value: give a study with one direction, or another sampler."
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
        raise ConfigError(f"Unknown sampler {name!r}: choose from {', '.join(SAMPLERS)}.")
    if name == "cmaes" and not _have_cmaes():
        raise MissingExtraError("cmaes needs the package cmaes: pip install 'paretorch[tune]'.")
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
