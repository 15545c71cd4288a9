"""Tuning of (α, ε): the thesis' grid, gradientless descent and its coordinate form, and what tuning costs.

The samplers and the cost curves need the extra `tune` (optuna); the rest needs numpy alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paretorch.errors import MissingExtraError
from paretorch.workflows.tuning.landscape import alpha_grid, best_alpha_per_eps, eps_grid, separability, trials_to_reach

if TYPE_CHECKING:
    from paretorch.workflows.tuning.cost import suboptimality
    from paretorch.workflows.tuning.samplers import CoordinateGLDSampler, GLDSampler, sampler
    from paretorch.workflows.tuning.worker import Found, search

_NEED_OPTUNA = {
    "Found": "worker",
    "search": "worker",
    "GLDSampler": "samplers",
    "CoordinateGLDSampler": "samplers",
    "sampler": "samplers",
    "suboptimality": "cost",
}

__all__ = [
    "CoordinateGLDSampler",
    "Found",
    "GLDSampler",
    "alpha_grid",
    "best_alpha_per_eps",
    "eps_grid",
    "sampler",
    "search",
    "separability",
    "suboptimality",
    "trials_to_reach",
]


def __getattr__(name: str) -> Any:
    if name not in _NEED_OPTUNA:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_NEED_OPTUNA[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("optuna", "cmaes"):
            raise
        raise MissingExtraError(f"{name} needs optuna: pip install 'paretorch[tune]'") from error
