"""Trained weights on a grid of real steps, one per group: of any codes (`Stepped`), or of those that a runtime stores (`Formatted`).

    Stepped     W = Δ round(w/Δ),         Δ = 2 a σ(s),         ∂W/∂w = 1
    Formatted   W = Δ clip(round(w/Δ)),   Δ = cast(2 a σ(s)),   ∂W/∂w = 1 inside the codes' range, 0 outside

    ∂W/∂s = (W − w ∂W/∂w)(1 − σ(s))

a is the step that the group was given (`paretorch.methods.precision.step_sizes`; in a format, that with the least squared error at the
start, `paretorch.core.formats`), and σ(s) = ½ then. The gradient of s is that of a learned step size (LSQ) in another variable, in which
all steps move in proportion to their size. It is also that of the noise of Definition 5.5: noise of reach σ(s) stands for the error of
rounding to a step of 2σ(s), which is taken here itself. A trained network has few steps to adapt to its grid, and adapts to what it sees:
noise that is gone at `harden` would be of no use to it. For the same reason, steps are cast to the runtime's number format while training
as they will be at the end.
"""

from collections.abc import Hashable, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor

from paretorch.core.formats import WeightFormat
from paretorch.core.forms import Form
from paretorch.core.groups import Grouping
from paretorch.core.relaxation import Relaxation, flatten, unflatten
from paretorch.core.step.noise import spread
from paretorch.methods.precision.grid import LOG2
from paretorch.methods.precision.rate import cut_digits, digit_unit, laplace_bits, laplace_slope, short_steps

TINY = 1e-30  # of a step or a magnitude: a group of zeros has none


class Stepped(Relaxation):
    """W = Δ round(w/Δ), Δ = 2 a σ(s) to a few digits while searching, and `step_size` once hard."""

    kind: ClassVar[str] = "precision"
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
        self._sizes: tuple[Tensor, ...] = ()
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

    def sizes(self) -> Tensor:
        """How many weights each group has, on the grid."""
        if not self._sizes or self._sizes[0].device != self.base.device:
            # Once: a number that goes to the device at every step could not be recorded.
            sizes = torch.as_tensor(self.grouping.sizes, dtype=torch.float32, device=self.base.device)
            self._sizes = (sizes.expand(self.base.shape),)
        return self._sizes[0]

    def of_rows(self, part: slice) -> Self | None:
        found = self._of_rows(part, "base", "step_size", "size", "heat")
        if found is not None:
            found._sizes = ()
        return found

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

    @property
    def can_fuse(self) -> bool:
        return not self.grouping.is_single

    @classmethod
    def form(cls, members: Sequence["Stepped"]) -> Form:
        return Form("steps", StepRows(members), squares=not members[0].hard and members[0].measured > 0)

    @classmethod
    def slopes_all(cls, members: Sequence["Stepped"], grids: Sequence[Tensor]) -> list[Tensor]:
        sizes = [one.size for one in members]
        steps = [one.step_size if one.hard else one.base for one in members]
        s, flat = flatten(list(grids)), flatten(steps)
        ratio = (flat if members[0].hard else 2.0 * flat * torch.sigmoid(s)) / flatten(sizes).clamp_min(TINY)
        # What no batch has shown, such as rows of an embedding, has no side that the price could be weighed against.
        heats, counts = [one.heat for one in members], [one.heat.numel() for one in members]
        seen = spread(torch.stack(torch._foreach_max(heats)) > 0.0, counts)
        priced = ((flatten(heats) > 0.0) | ~seen).to(torch.float32)
        return unflatten(laplace_slope(ratio) * torch.sigmoid(-s) / LOG2 * priced, list(grids))

    def forward(self, weight: Tensor) -> Tensor:
        return self.apply_all([self], [self.grid()], [weight])[0]

    def ratio(self, s: Tensor) -> Tensor:
        """The step of each group over the mean magnitude of its weights."""
        return (self.step_size if self.hard else self.real_steps(s)) / self.size.clamp_min(TINY)

    def bits(self, s: Tensor) -> Tensor:
        return self.grouping.expand(laplace_bits(self.ratio(s)))

    def price_slope(self, s: Tensor) -> Tensor:
        seen = self.heat > 0.0
        # What no batch has shown, such as rows of an embedding, has no side that the price could be weighed against.
        priced = (seen | ~seen.any()).to(torch.float32)
        return laplace_slope(self.ratio(s)) * torch.sigmoid(-s) / LOG2 * priced


class StepRows:
    """Δ of all rows of several weights."""

    def __init__(self, members: Sequence[Stepped]) -> None:
        self._members, self._decisions = list(members), [one.decision for one in members]
        self._bases, self._heats = [one.base for one in members], [one.heat for one in members]
        self._given = [one.given for one in members]
        lengths = [one.numel() for one in self._decisions]
        device = self._decisions[0].device
        self._lengths = torch.tensor(lengths, device=device)
        self._sizes = flatten([one.sizes() for one in members])
        self._unit = digit_unit(self._sizes)
        self._total = sum(lengths)
        self._steps = torch.empty_like(self._sizes)  # always the same: a recorded step reads and writes it, too

    def forward(self) -> tuple[Tensor, None]:
        if self._members[0].hard:
            self._steps.copy_(flatten([one.step_size for one in self._members]))
        else:
            own = 2.0 * flatten(self._bases) * torch.sigmoid(flatten(self._decisions))
            given = torch.stack(self._given).repeat_interleave(self._lengths, output_size=self._total)
            torch.where(given, own, cut_digits(own, self._unit), out=self._steps)
        return self._steps, None

    def backward(self) -> Tensor:
        return self._steps  # that W was written with

    def gradients(self, sums: Tensor, squares: Tensor | None) -> list[Tensor]:
        first = self._members[0]
        if squares is not None and first.measured:
            now = (first.step < first.measured).to(torch.float32)
            torch._foreach_add_(self._heats, unflatten(squares / self._sizes * now, self._heats))
        return unflatten(sums * torch.sigmoid(-flatten(self._decisions)), self._decisions)


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
