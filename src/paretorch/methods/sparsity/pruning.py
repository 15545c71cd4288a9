"""What every method that drops weights has: a target share of them, met exactly when rounded."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from paretorch.core.method import Method, Steered, Term
from paretorch.errors import MissedTargetWarning
from paretorch.support.checks import require_a_group, require_number
from paretorch.support.warn import warn

_MISSED = 0.05  # of the weights: a target that is further away than that from what rounding gives was not met


@dataclass(frozen=True, kw_only=True)
class Pruning(Steered, Method):
    """target: share of the selected weights to drop, met exactly at `harden`."""

    target: float | None = None

    room: ClassVar[str] = "sparsity"
    unit: ClassVar[str] = "kept"
    order: ClassVar[int] = 2

    def check(self) -> None:
        super().check()
        if self.target is not None:
            hint = "give the share of weights to drop, from 0 to just below 1, such as 0.95"
            require_number("target", self.target, 0.0, math.nextafter(1.0, 0.0), hint)

    def check_groups(self, smallest: float, total: float) -> None:
        require_a_group(self.target, smallest, total)

    def tell_missed(self, term: Term) -> None:
        reached = float(self.measure(term)["sparsity"])
        if self.target is not None and abs(reached - self.target) > _MISSED:
            warn(
                f"target={self.target!r}: {reached:.4f} is dropped, since groups go or stay whole: use smaller groups, or another target",
                MissedTargetWarning,
            )

    @property
    def share(self) -> float | None:
        return None if self.target is None else 1.0 - self.target

    def aim(self, share: float) -> Self:
        return self if self.target is not None else replace(self, target=1.0 - share)
