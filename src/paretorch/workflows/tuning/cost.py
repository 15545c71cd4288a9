"""What tuning costs: searches over a table of known errors, so that thousands of them take no training at all."""

from __future__ import annotations

import numpy as np
import optuna
from numpy.typing import ArrayLike

from paretorch.errors import ConfigError
from paretorch.workflows.tuning.landscape import Floats, error_table
from paretorch.workflows.tuning.samplers import sampler
from paretorch.workflows.tuning.storage import quiet_optuna


def suboptimality(errors: ArrayLike, method: str, trials: int = 100, repetitions: int = 100, seed: int = 0) -> Floats:
    """Gap between the best error found so far and the best of the table: shape (repetitions, trials).

    `errors` has one row per α and one column per ε; `method` is one of "gld", "cgld", "tpe", "cmaes", "random". Take
    `.mean(0)` for the curve of the thesis, and `trials_to_reach` for its bars.
    """
    table = error_table(errors)
    if trials < 1 or repetitions < 1:
        raise ConfigError("At least one trial and one repetition are needed")
    with quiet_optuna():
        found = np.stack([_search(table, method, trials, seed * 1_000_003 + i) for i in range(repetitions)])
    gaps: Floats = np.minimum.accumulate(found, axis=1) - table.min()
    return gaps


def _search(table: Floats, method: str, trials: int, seed: int) -> Floats:
    """The errors that one search meets, in order."""
    rows, columns = table.shape
    study = optuna.create_study(sampler=sampler(method, seed))
    seen = np.empty(trials)
    for i in range(trials):
        trial = study.ask()
        error = table[trial.suggest_int("alpha", 0, rows - 1), trial.suggest_int("eps", 0, columns - 1)]
        study.tell(trial, error)
        seen[i] = error
    return seen
