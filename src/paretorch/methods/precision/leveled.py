"""A precision that is searched for, of weights or of activations: s stands for 1 + log₂(1 + e⁻ˢ) bits, rounded at the end."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from paretorch.core.groups import Grouping
from paretorch.core.relaxation import Relaxation
from paretorch.methods.precision.grid import LOG2, level_above, real_bits, s_of_bits, whole_bits

if TYPE_CHECKING:
    from paretorch.methods.precision.smol import SMOL


class Leveled(Relaxation):
    """What both have in common: bits of s, real while searching and whole once hard, and what they cost."""

    def __init__(self, method: "SMOL", grouping: Grouping, seed: int, device: torch.device) -> None:
        super().__init__(grouping, float(s_of_bits(method.init_bits)), device)
        self.seed, self.most = seed, level_above(method.init_bits, method.allowed_bits)
        self.allowed, self.rounding = method.allowed_bits, method.rounding

    def levels(self, s: Tensor) -> Tensor:
        """Whole bits from s."""
        return self.raised(real_bits(s), 0.0)

    def raised(self, real: Tensor, offset: float) -> Tensor:
        """Whole bits from real ones, after an offset."""
        return whole_bits(torch.minimum(real + offset, real.clamp_min(self.most)), self.allowed, self.rounding)

    def bits(self, s: Tensor) -> Tensor:
        return self.grouping.expand(self.levels(s).to(torch.float32) if self.hard else real_bits(s))

    def price_slope(self, s: Tensor) -> Tensor:
        return -torch.sigmoid(-s) / LOG2

    @classmethod
    def slopes_all(cls, members: Sequence[Self], grids: Sequence[Tensor]) -> list[Tensor]:
        return list(torch._foreach_mul(torch._foreach_sigmoid(torch._foreach_neg(list(grids))), -1.0 / LOG2))
