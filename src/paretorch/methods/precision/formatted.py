"""Weights with the values that a runtime stores: W = Δ c, c = clip(round(w/Δ)), Δ in the runtime's own number format.

    Δ = cast(2 a σ(s)),   ∂W/∂w = 1 inside the codes' range, 0 outside,   ∂W/∂s = (W − 1{inside} w)(1 − σ(s))

a is the step of each group with the least squared error at the start (`paretorch.core.formats`), and σ(s) = ½ then. The gradient of s is
that of a learned step size (LSQ) in another variable, in which all steps move in proportion to their size. Steps are cast while training
as they will be at the end, so that rounding changes nothing.
"""

from collections.abc import Hashable, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor

from paretorch.core.formats import WeightFormat
from paretorch.core.groups import Grouping
from paretorch.core.relaxation import Relaxation


class Formatted(Relaxation):
    """W = Δ clip(round(w/Δ)) in a format."""

    kind: ClassVar[str] = "precision"
    base: Tensor
    step_size: Tensor

    def __init__(self, form: WeightFormat, grouping: Grouping, weight: Tensor) -> None:
        super().__init__(grouping, 0.0, weight.device)
        self.stored = form
        self.register_buffer("base", form.fit(weight, self.grouping))  # a, with its sign
        self.register_buffer("step_size", self.base.clone())  # Δ, once rounded

    def steps(self, s: Tensor) -> Tensor:
        """Δ of each group."""
        return self.step_size if self.hard else self.stored.cast(2.0 * self.base * torch.sigmoid(s))

    def settle(self) -> None:
        """Write the final steps."""
        self.step_size.copy_(self.steps(self.grid()))

    def of_rows(self, part: slice) -> Self | None:
        return self._of_rows(part, "base", "step_size")

    def batch_key(self) -> Hashable:
        return (self.hard, self.stored.name)

    @classmethod
    def apply_all(
        cls, members: Sequence["Formatted"], grids: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> list[Tensor]:
        found = []
        for one, s, weight in zip(members, grids, weights, strict=True):
            found.append(one.stored.values(weight, one.grouping.expand(one.steps(s))).to(weight.dtype))
        return found

    @classmethod
    def pull_all(
        cls,
        members: Sequence["Formatted"],
        grids: Sequence[Tensor],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        decide: bool,
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        own: list[Tensor] = []
        slopes: list[Tensor] = []
        for one, s, weight, value, gradient in zip(members, grids, inputs, outputs, gradients, strict=True):
            inside = one.stored.reaches(weight, one.grouping.expand(one.steps(s)))
            own.append(gradient * inside)
            if decide and one.stored.is_half:
                slopes.append(torch.zeros_like(s))
            elif decide:
                moved = (value - weight * inside).to(torch.float32) * gradient
                slopes.append(one.grouping.reduce(moved) * torch.sigmoid(-s))
        return own, slopes if decide else None

    def forward(self, weight: Tensor) -> Tensor:
        return self.apply_all([self], [self.grid()], [weight])[0]

    def bits(self, s: Tensor) -> Tensor:
        return s.new_full((1,) * len(self.grouping.shape), float(self.stored.bits))
