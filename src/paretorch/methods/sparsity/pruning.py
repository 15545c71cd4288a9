"""What every method that drops weights has: a target share of them, met exactly when rounded, and the score that divides them.

`quantile`: of values v with sizes n, the cut lies midway between two neighbours in order. Below it are those whose middle
(their own size counted by half) is less than `share` of all. Sorting finds it. A compiler can do nothing about a sort, which on
a GPU is many launches, so in a compiled step the cut is found digit by digit: the bits of a float ≥ 0, read as an integer, are in
the order of the floats, and each pass over the values, which is one kernel, settles five of them (the first pass six).
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from paretorch.core.method import Method, Steered, Term
from paretorch.errors import MissedTargetWarning, warn
from paretorch.support.checks import require_a_group, require_number

_MISSED = 0.05  # of the weights: a target that is further away than that from what rounding gives was not met


@dataclass(frozen=True, kw_only=True)
class Pruning(Steered, Method):
    """target: share of the selected weights to drop, met exactly at `harden`."""

    target: float | None = None

    kind: ClassVar[str] = "sparsity"
    unit: ClassVar[str] = "kept"
    order: ClassVar[int] = 2

    def check(self) -> None:
        super().check()
        if self.target is not None:
            hint = "give the share of weights to drop, from 0 to just below 1, such as 0.95"
            require_number("target", self.target, 0.0, math.nextafter(1.0, 0.0), hint)

    def check_groups(self, smallest: float, total: float) -> None:
        require_a_group(self.target, smallest, total)

    def warn_missed_target(self, term: Term) -> None:
        reached = float(self.measure(term)["sparsity"])
        if self.target is not None and abs(reached - self.target) > _MISSED:
            warn(
                f"target={self.target!r}: {reached:.4f} is dropped, since groups go or stay whole: use smaller groups, or another target",
                MissedTargetWarning,
            )

    @property
    def share(self) -> float | None:
        return None if self.target is None else 1.0 - self.target

    def with_target(self, share: float) -> Self:
        return self if self.target is not None else replace(self, target=1.0 - share)


_DIGITS = ((25, 64), (20, 32), (15, 32), (10, 32), (5, 32), (0, 32))  # place and number of choices; 31 bits in all


def quantile(values: Tensor, sizes: Tensor, share: Tensor) -> Tensor:
    """The cut, 0 where none shall go; values: fp32, 0 or more."""
    find = by_digits if torch.compiler.is_compiling() else by_sorting
    return torch.where(share > 0, find(values, sizes, share), 0.0)


def by_sorting(values: Tensor, sizes: Tensor, share: Tensor) -> Tensor:
    ranked, order = torch.sort(values)
    own = sizes[order]
    below = torch.cumsum(own, 0)
    count = ((below - own / 2) / below[-1] < share).sum().view(1)
    last = len(ranked) - 1
    low, high = ranked[(count - 1).clamp(0, last)], ranked[count.clamp(0, last)]
    return ((low + high) / 2).squeeze(0)


def by_digits(values: Tensor, sizes: Tensor, share: Tensor) -> Tensor:
    bits = values.view(torch.int32)
    wanted = share * sizes.sum()
    # The greatest number such that the values below it are fewer than wanted: the value at which the share is crossed.
    found = torch.zeros((), dtype=torch.int32, device=values.device)
    for place, choices in _DIGITS:
        tried = found + (torch.arange(choices, dtype=torch.int32, device=values.device) << place)
        below = torch.where(bits < tried[:, None], sizes, 0.0).sum(1)
        digit = (below < wanted).sum().sub(1).clamp_min(0).to(torch.int32)
        found = found + (digit << place)
    found = torch.minimum(found, bits.max())
    below = torch.where(bits < found, sizes, 0.0).sum()
    own = torch.where(bits == found, sizes, 0.0).sum()
    # It goes if its middle is below the share.
    goes = below + own / 2 < wanted
    high = torch.where(goes, bits > found, bits >= found)
    least = torch.where(high, values, torch.inf).amin()
    most = torch.where(high, -torch.inf, values).amax()
    return (torch.minimum(least, values.amax()) + torch.maximum(most, values.amin())) / 2
