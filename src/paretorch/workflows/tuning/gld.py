"""Gradientless descent (Golovin et al., 2020, GLD-Search) in the unit cube, and its coordinate form (thesis 6.4.3).

A sweep looks around the best point so far at the radii R, R/2, ..., r, one trial each. Large radii make it global, small
ones local, and none needs to be tuned. CGLD lets each sweep move along one coordinate alone, in turn: the right thing
when the coordinates contribute independently, as AvaGrad's α and ε do.

What differs: the centre moves as soon as a better point is known, not at the end of the sweep (which costs about half as
many trials again on the tables of the tests); and on a grid no point is tried twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paretorch.errors import ConfigError

Point = NDArray[np.float64]


@dataclass(frozen=True)
class GradientlessDescent:
    """Where to look next. Trial 0 is the start; every sweep after it has one trial per radius."""

    widest: float = 0.5
    narrowest: float = 1 / 32
    coordinate: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.narrowest <= self.widest <= 1:
            raise ConfigError(f"Radii are 0 < narrowest <= widest <= 1, not {self.narrowest} and {self.widest}.")

    @property
    def radii(self) -> list[float]:
        """R, R/2, R/4, ... down to r."""
        count = int(np.floor(np.log2(self.widest / self.narrowest) + 1e-9)) + 1
        return [self.widest * 0.5**k for k in range(count)]

    def propose(self, trial: int, centre: Point, rng: np.random.Generator, wider: int = 0) -> Point:
        """A point at random in the ball (or on the line) around `centre`, with the radius whose turn it is.

        `wider` doubles the radius so many times, for a grid whose points nearby have all been tried. When a whole line is
        within reach, the next coordinate takes its turn, and after the last of them all move together.
        """
        radius = self.radii[(trial - 1) % len(self.radii)] * 2.0**wider
        dimensions = len(centre)
        used_up = int(max(0.0, np.log2(radius)))
        if self.coordinate and used_up < dimensions:
            axis = ((trial - 1) // len(self.radii) + used_up) % dimensions
            move = np.zeros(dimensions)
            move[axis] = rng.uniform(-radius, radius)
        else:
            direction = rng.normal(size=dimensions)
            move = direction / np.linalg.norm(direction) * radius * rng.random() ** (1 / dimensions)
        return np.clip(centre + move, 0.0, 1.0)
