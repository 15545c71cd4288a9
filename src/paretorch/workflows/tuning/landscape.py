"""The 21 × 21 settings of (α, ε) of the thesis (section 6.3), and what a table of their errors says.

Where the best α lies for each ε, and how soon a search comes close.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paretorch.errors import ConfigError


def alpha_grid() -> list[float]:
    """α = 5e-7, 1e-6, 5e-6, ..., 1000, 5000: 21 values."""
    return [_number(digit, k) for k in range(-7, 4) for digit in (1, 5)][1:]


def eps_grid(optimizer: str = "AvaGrad") -> list[float]:
    """ε = 1e-8, 2e-8, 1e-7, ..., 20, 100: 21 values; for AdaBelief, whose ε acts on v, all are 1e-8 times smaller."""
    shift = -8 if optimizer.lower() == "adabelief" else 0
    return [_number(digit, k + shift) for k in range(-8, 3) for digit in (1, 2)][:-1]


def _number(digit: int, exponent: int) -> float:
    return float(f"{digit}e{exponent}")


Floats = NDArray[np.float64]


def error_table(errors: ArrayLike) -> Floats:
    """The errors as an array [α, ε]; a setting that diverged (not finite) counts as the worst of the others."""
    table = np.array(errors, dtype=np.float64)
    if table.ndim != 2 or not np.isfinite(table).any():
        raise ConfigError("The table of errors is two-dimensional, one row per α, one column per ε, with some finite")
    table[~np.isfinite(table)] = table[np.isfinite(table)].max()
    return table


def best_alpha_per_eps(errors: ArrayLike) -> NDArray[np.int64]:
    """For each ε the index of its best α (the middle one of equals): all the same if the two can be tuned apart."""
    table = error_table(errors)
    best = table == table.min(axis=0)
    return np.array([(rows := np.flatnonzero(column))[(len(rows) - 1) // 2] for column in best.T], dtype=np.int64)


def separability(errors: ArrayLike) -> float:
    """How much is lost, averaged over ε, by keeping the one α that is best on average: 0 if α and ε are separable.

    min over α of mean over ε of (error(α, ε) − min over α' of error(α', ε)), in the unit of the table.
    """
    table = error_table(errors)
    return float((table - table.min(axis=0)).mean(axis=1).min())


def trials_to_reach(gaps: ArrayLike, within: float) -> Floats:
    """Per repetition (row) the number of trials after which the best gap is at most `within`; inf if it never is."""
    close = np.asarray(gaps, dtype=np.float64) <= within + 1e-12
    first = close.argmax(axis=1) + 1.0
    return np.where(close.any(axis=1), first, np.inf)
