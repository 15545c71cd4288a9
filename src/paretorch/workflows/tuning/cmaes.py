"""CMA-ES (Hansen, 2016) as an Optuna sampler that keeps nothing in the storage but numbers.

Optuna's own sampler pickles its state into the storage and unpickles what it finds there, so a storage from a stranger could
run code. This one computes its state anew from the finished trials: each has the number of its generation as an attribute.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from paretorch.optim.kernels.rounding import stream_key
from paretorch.workflows.tuning.units import from_unit, searched_space, to_unit

if TYPE_CHECKING:
    from cmaes import CMA

_GENERATION = "cmaes_generation"
_SPREAD = 1 / 6  # of the unit cube, as Optuna has it


class CMAESSampler(optuna.samplers.BaseSampler):
    """CMA-ES over the parameters that all finished trials had; the first trial is drawn at random.

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
