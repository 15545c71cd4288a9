"""Real steps for trained weights: W = Δ round(w/Δ), one step per group, on a grid with zero.

    Δ = 2 a σ(s),   straight through to w,   ∂W/∂s = (W − w)(1 − σ(s))

a is the step that the group was given (`paretorch.methods.precision.step_sizes`), and σ(s) = ½ then. The gradient of s is that of a
learned step size (LSQ) in another variable, and also that of the noise of Definition 5.5: noise of reach σ(s) stands for the error
of rounding to a step of 2σ(s), which is taken here itself. A trained network has few steps to adapt to its grid, and adapts to what it
sees: noise that is gone at `harden` would be of no use to it.
"""

from collections.abc import Hashable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from paretorch.core.groups import Grouping
from paretorch.core.relaxation import Relaxation
from paretorch.methods.precision.grid import LOG2
from paretorch.methods.precision.rate import laplace_bits, laplace_slope, short_steps

TINY = 1e-30  # of a step or a magnitude: a group of zeros has none


class Stepped(Relaxation):
    """W = Δ round(w/Δ), Δ = 2 a σ(s) to a few digits while searching, and `step_size` once hard."""

    room: ClassVar[str] = "precision"
    given: Tensor
    base: Tensor
    step_size: Tensor
    size: Tensor
    heat: Tensor

    def __init__(self, grouping: Grouping, device: torch.device) -> None:
        super().__init__(grouping, 0.0, device)
        ones = torch.ones(grouping.grid, dtype=torch.float32, device=device)
        self.register_buffer("base", ones)  # a
        self.register_buffer("step_size", ones.clone())  # Δ, once rounded
        self.register_buffer("size", ones.clone())  # mean magnitude of the weights of each group
        self.register_buffer("heat", torch.zeros_like(ones))  # mean squared gradients of each group, added up
        self.register_buffer("given", torch.zeros((), dtype=torch.bool, device=device))
        self.measured = 0  # steps at the beginning during which squared gradients are added up

    def steps(self, s: Tensor) -> Tensor:
        """Δ of each group, to the digits that will be kept: weights adapt to the very steps that they will be rounded to."""
        if self.hard:
            return self.step_size
        own = self.real_steps(s)
        return torch.where(self.given, own, short_steps(own, self.grouping.sizes))

    def real_steps(self, s: Tensor) -> Tensor:
        """Δ of each group while searching, with all of its digits."""
        return 2.0 * self.base * torch.sigmoid(s)

    def batch_key(self) -> Hashable:
        return (self.hard, self.measured)

    @classmethod
    def apply_all(
        cls, members: Sequence["Stepped"], grids: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> list[Tensor]:
        steps = [one.grouping.expand(one.steps(s)) for one, s in zip(members, grids, strict=True)]
        values = torch._foreach_div([weight.to(torch.float32) for weight in weights], steps)
        torch._foreach_round_(values)
        torch._foreach_mul_(values, steps)
        return [value.to(weight.dtype) for value, weight in zip(values, weights, strict=True)]

    @classmethod
    def pull_all(
        cls,
        members: Sequence["Stepped"],
        grids: Sequence[Tensor],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        decide: bool,
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        own = list(gradients)
        if not decide:
            return own, None
        cls._measure(members, own)
        moved = torch._foreach_mul(torch._foreach_sub(list(outputs), list(inputs)), own)
        reduced = [one.grouping.reduce(value.to(torch.float32)) for one, value in zip(members, moved, strict=True)]
        return own, list(torch._foreach_mul(reduced, torch._foreach_sigmoid(torch._foreach_neg(list(grids)))))

    @classmethod
    def _measure(cls, members: Sequence["Stepped"], gradients: Sequence[Tensor]) -> None:
        """Add up squared gradients, at the beginning."""
        first = members[0]
        if not first.step.is_cuda and int(first.step) >= first.measured:
            return
        now = (first.step < first.measured).to(torch.float32)
        for one, gradient in zip(members, gradients, strict=True):
            one.heat.add_(one.grouping.reduce(gradient.to(torch.float32).square()) / one.grouping.sizes * now)

    def forward(self, weight: Tensor) -> Tensor:
        return self.apply_all([self], [self.grid()], [weight])[0]

    def ratio(self, s: Tensor) -> Tensor:
        """The step of each group over the mean magnitude of its weights."""
        return (self.step_size if self.hard else self.real_steps(s)) / self.size.clamp_min(TINY)

    def bits(self, s: Tensor) -> Tensor:
        return self.grouping.expand(laplace_bits(self.ratio(s)))

    def price_slope(self, s: Tensor) -> Tensor:
        felt = self.heat > 0.0
        # What no batch has shown, such as rows of an embedding, has no side that the price could be weighed against.
        priced = (felt | ~felt.any()).to(torch.float32)
        return laplace_slope(self.ratio(s)) * torch.sigmoid(-s) / LOG2 * priced
