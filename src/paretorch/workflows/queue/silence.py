"""When a worker counts as dead: an observer sees no change of its beat for some time, by the observer's own clock.

No clock is compared with another's and no process number is looked up. So machines whose clocks differ, containers that
share a host name, zombies, and stopped processes are all judged alike.
"""

import os
import time
from collections.abc import Callable, Hashable

from paretorch.errors import ConfigError

PATIENCE_VARIABLE = "PARE_PATIENCE"
_PATIENCE = 60.0
_BEATS_PER_PATIENCE = 12


def patience() -> float:
    """Seconds of silence after which a worker counts as dead: 60, or the environment's PARE_PATIENCE."""
    text = os.environ.get(PATIENCE_VARIABLE, "")
    try:
        seconds = float(text) if text else _PATIENCE
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"{PATIENCE_VARIABLE}={text!r}: give the seconds of silence that end a worker, such as 60")
    return seconds


def beat_interval() -> float:
    """Seconds between two beats of a living worker."""
    return patience() / _BEATS_PER_PATIENCE


class Silence:
    """Watches the beats of others.

    Args:
        limit: Seconds without a change after which one counts as dead; by default `patience()`.
        clock: The observer's clock, in seconds; it must not jump.
    """

    def __init__(self, limit: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = patience() if limit is None else limit
        self._clock = clock
        self._seen: dict[Hashable, tuple[Hashable, float]] = {}

    def lasts(self, who: Hashable, beat: Hashable) -> bool:
        """Whether `who` has shown this same beat for too long."""
        known, since = self._seen.get(who, (None, 0.0))
        if who not in self._seen or known != beat:
            self._seen[who] = (beat, self._clock())
            return False
        return self._clock() - since >= self._limit
