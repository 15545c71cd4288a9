"""A weight as whole numbers and steps, W = fl(step · number): what most codings are, without the dense floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Integers:
    """A weight with rows of outputs.

    Args:
        numbers: (outputs, inputs), of any signed type.
        steps: (outputs, groups), fp32.
        group: How many neighbouring inputs share a step.
    """

    numbers: NDArray[np.signedinteger[Any]]
    steps: NDArray[np.float32]
    group: int

    def dense(self, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        """The weights of some outputs in fp32."""
        numbers, steps = self.numbers[start:stop], self.steps[start:stop]
        spread = steps if steps.shape[1] == 1 else np.repeat(steps, self.group, axis=1)[:, : numbers.shape[1]]
        with np.errstate(all="ignore"):  # forged steps may be anything
            return np.asarray(numbers * spread, dtype=np.float32)


def smallest_type(low: int, high: int) -> np.dtype[Any]:
    """The smallest signed type that holds these numbers."""
    return np.promote_types(np.min_scalar_type(min(low, -1)), np.min_scalar_type(-max(high, 1) - 1))
