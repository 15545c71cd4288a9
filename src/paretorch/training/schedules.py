"""Learning rates as functions of time, never multiplied up step by step.

Time is measured in epochs (a real number: step / steps per epoch), so a schedule does not change with the batch size,
and a resumed run sees the very rates of an uninterrupted one. A schedule gives a factor of the base rate.
"""

import math
from collections.abc import Callable, Sequence

from paretorch.errors import ConfigError

Schedule = Callable[[float], float]

SCHEDULES = ("constant", "cosine", "linear", "onecycle", "steps")


def constant(_: float) -> float:
    """1 at all times."""
    return 1.0


def cosine(epochs: float) -> Schedule:
    """(1 + cos(pi t / T)) / 2: from 1 down to 0 at the end."""
    return lambda t: 0.5 * (1.0 + math.cos(math.pi * min(t / epochs, 1.0)))


def linear(epochs: float) -> Schedule:
    """1 - t / T."""
    return lambda t: max(1.0 - t / epochs, 0.0)


def steps(milestones: Sequence[float], factor: float) -> Schedule:
    """factor^k after the k-th milestone (in epochs)."""
    return lambda t: factor ** sum(t >= milestone for milestone in milestones)


def onecycle(epochs: float, peak: float = 0.3) -> Schedule:
    """Linear from 0.04 to 1 over the first `peak` of the time, then a cosine down to 0."""
    top = peak * epochs

    def rate(t: float) -> float:
        if t < top:
            return 0.04 + 0.96 * t / top
        return 0.5 * (1.0 + math.cos(math.pi * min((t - top) / (epochs - top), 1.0)))

    return rate


def warmed(schedule: Schedule, warmup: float) -> Schedule:
    """The schedule times a linear ramp, from 0.01 to 1, over the first `warmup` epochs."""
    if warmup <= 0:
        return schedule
    return lambda t: schedule(t) * min(0.01 + 0.99 * t / warmup, 1.0)


def build(
    name: str, epochs: float, *, milestones: Sequence[float] = (), factor: float = 0.1, warmup: float = 0
) -> Schedule:
    """The schedule of that name over `epochs`."""
    epochs = max(epochs, 1e-9)
    if name not in SCHEDULES:
        raise ConfigError(f"Unknown schedule {name!r}; choose one of {', '.join(SCHEDULES)}")
    if name == "steps" and not milestones:
        raise ConfigError("The schedule 'steps' needs milestones in epochs, for example milestones = [80, 120]")
    made = {
        "constant": lambda: constant,
        "cosine": lambda: cosine(epochs),
        "linear": lambda: linear(epochs),
        "onecycle": lambda: onecycle(epochs),
        "steps": lambda: steps(milestones, factor),
    }
    return warmed(made[name](), warmup)
