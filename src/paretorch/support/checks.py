"""Checking options: one clear sentence for what cannot be meant, before anything is touched."""

import math
from collections.abc import Sequence
from typing import Any

from paretorch.errors import ConfigError

_LARGEST = 1e38
"""Above it are numbers that tensors of single precision cannot hold."""


def require_number(name: str, value: Any, low: float, high: float, hint: str, *, above: bool = False) -> None:
    """A finite number from `low` (or above it) to `high`."""
    real = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not real or not low <= value <= high or (above and value == low):
        raise ConfigError(f"{name}={value!r}: {hint}")


def require_count(name: str, value: Any, low: int, hint: str) -> None:
    """A whole number of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigError(f"{name}={value!r}: {hint}")


def require_a_group(target: float | None, smallest: float, total: float) -> None:
    """A target of dropped weights that would drop everything, since groups go or stay as a whole, is refused."""
    if target is not None and (1.0 - target) * total < smallest / 2:
        most = math.floor(10_000 * (1.0 - smallest / total)) / 10_000
        raise ConfigError(
            f"target={target!r} would drop everything: the smallest group has {smallest:g} of {total:g} weights, so ask for "
            f"at most {most:.4f}, or use smaller groups"
        )


def require_one_of(name: str, value: str, choices: Sequence[str]) -> None:
    """One of the names that there are."""
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}; choose one of {', '.join(choices)}")


def require_at_least(name: str, value: float, bound: float) -> None:
    """A number of at least `bound` that single precision can hold; NaN is none."""
    if not value >= bound:
        raise ConfigError(f"{name} must be at least {bound}, not {value}")
    if value > _LARGEST:
        raise ConfigError(f"{name} must be at most {_LARGEST:g}, not {value!r:.40}")
