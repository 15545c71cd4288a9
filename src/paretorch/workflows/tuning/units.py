"""Parameters of a search as numbers from 0 to 1, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study

from paretorch.errors import ConfigError


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
        raise ConfigError(f"A search knows no {type(distribution).__name__}.")
    return distribution


def _ends(distribution: FloatDistribution | IntDistribution) -> tuple[float, float]:
    low, high = float(distribution.low), float(distribution.high)
    return (float(np.log(low)), float(np.log(high))) if distribution.log else (low, high)
