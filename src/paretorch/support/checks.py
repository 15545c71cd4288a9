"""Checks of options: each raises a `ConfigError` of one sentence before anything has changed."""

import math
from collections.abc import Sequence
from typing import Any

from paretorch.errors import ConfigError

_LARGEST = 1e38  # larger numbers may overflow in single precision


def require_number(name: str, value: Any, low: float, high: float, hint: str, *, above: bool = False) -> None:
    """Raise unless the value is a finite number from `low` to `high`.

    Args:
        hint: The end of the error: what would be right.
        above: Whether `low` itself is refused.
    """
    real = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not real or not low <= value <= high or (above and value == low):
        raise ConfigError(f"{name}={value!r}: {hint}")


def require_count(name: str, value: Any, low: int, hint: str) -> None:
    """Raise unless the value is a whole number of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigError(f"{name}={value!r}: {hint}")


def require_a_group(target: float | None, smallest: float, total: float) -> None:
    """Raise for a target of dropped weights that would drop everything, since a group is kept or dropped as a whole."""
    if target is not None and (1.0 - target) * total < smallest / 2:
        most = math.floor(10_000 * (1.0 - smallest / total)) / 10_000
        raise ConfigError(
            f"target={target!r} would drop everything: the smallest group has {smallest:g} of {total:g} weights, so ask for "
            f"at most {most:.4f}, or use smaller groups"
        )


def require_one_of(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise unless the value is one of the choices."""
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}; choose one of {', '.join(choices)}")


def require_at_least(name: str, value: float, bound: float) -> None:
    """Raise unless the value is a number of at least `bound` that single precision can hold; NaN is not."""
    if not value >= bound:
        raise ConfigError(f"{name} must be at least {bound}, not {value}")
    if value > _LARGEST:
        raise ConfigError(f"{name} must be at most {_LARGEST:g}, not {value!r:.40}")
