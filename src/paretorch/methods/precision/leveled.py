"""A precision that is searched for, of weights or of activations: s stands for 1 + log₂(1 + e⁻ˢ) bits, rounded at the end."""

from collections.abc import Sequence
from typing import Protocol, Self

import torch
from torch import Tensor

from paretorch.core.groups import Grouping
from paretorch.core.relaxation import Relaxation
from paretorch.methods.precision.grid import LOG2, level_above, real_bits, s_of_bits, whole_bits


class LevelOptions(Protocol):
    """The options of a method that says where a search begins and which precisions it may end with."""

    @property
    def init_bits(self) -> float: ...
    @property
    def allowed_bits(self) -> tuple[int, ...]: ...
    @property
    def rounding(self) -> str: ...


class Leveled(Relaxation):
    """What both have in common: bits of s, real while searching and whole once hard, and what they cost.

    Weights may have more, which activations do without: a scale 2^power, `lead` ahead of that of the weights if it follows
    them, and zeros, for weights that are nearer to zero than to their grid.
    """

    zero_precision: bool = False
    lead: float | None = None
    power: Tensor

    def __init__(self, method: LevelOptions, grouping: Grouping, seed: int, device: torch.device) -> None:
        super().__init__(grouping, float(s_of_bits(method.init_bits)), device)
        self.seed, self.most = seed, level_above(method.init_bits, method.allowed_bits)
        self.allowed, self.rounding = method.allowed_bits, method.rounding

    def levels(self, s: Tensor) -> Tensor:
        """Whole bits from s."""
        return self.raised(real_bits(s), 0.0)

    def raised(self, real: Tensor, offset: float) -> Tensor:
        """Whole bits from real ones, after an offset."""
        return whole_bits(torch.minimum(real + offset, real.clamp_min(self.most)), self.allowed, self.rounding)

    def is_zero(self, weight: Tensor, p: Tensor) -> Tensor:
        """Which weights get no bits at all, if they would have p."""
        return torch.zeros_like(weight, dtype=torch.bool)

    def find_zeros(self, weight: Tensor, p: Tensor) -> None:
        """Note which weights get no bits, now that the others have p."""

    def bits(self, s: Tensor) -> Tensor:
        return self.grouping.expand(self.levels(s).to(torch.float32) if self.hard else real_bits(s))

    def price_slope(self, s: Tensor) -> Tensor:
        return -torch.sigmoid(-s) / LOG2

    @classmethod
    def bits_all(cls, members: Sequence[Self], grids: Sequence[Tensor]) -> list[Tensor] | None:
        if len(grids) == len(members):
            return super().bits_all(members, grids)
        return [members[0].levels(s).to(torch.float32) if members[0].hard else real_bits(s) for s in grids]

    @classmethod
    def slopes_all(cls, members: Sequence[Self], grids: Sequence[Tensor]) -> list[Tensor]:
        return list(torch._foreach_mul(torch._foreach_sigmoid(torch._foreach_neg(list(grids))), -1.0 / LOG2))
