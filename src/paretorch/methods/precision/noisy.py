"""The relaxation of SMOL as printed: noise while searching, the binary grid afterwards.

    W = w + 2^k σ(s) ⊙ ε, ε ~ U(−1, 1)   while searching
    W = 2^k Q(w / 2^k, p)                 once hard, straight through

Weights of all layers are computed together, in multi-tensor operations.

Several samples of the noise per step are the K of Definition 5.5, whose Algorithm 5 has K = 1: 1/K Σ_k L(f(w + σ(s) ⊙ ε⁽ᵏ⁾)) + λ Σ p

    for _ in noise_samples(model, 4):
        (criterion(model(x), y) / 4).backward()
    optimizer.step(); plan.step(); optimizer.zero_grad()

Gradients add up over the passes and the price comes once, in `plan.step()`. K passes cost K times as much. K parts of a
batch, one per pass, cost what the batch does (`pare train --set 'precision_options={"samples": 4}'` takes these; batch norm
then sees a part at a time). Noise of activations, and the masks of stochastic rivals, are drawn anew too.
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Site
from paretorch.core.forms import Form
from paretorch.core.groups import Grouping
from paretorch.core.plan import Plan
from paretorch.core.relaxation import flatten, unflatten
from paretorch.core.state import MOST_SAMPLES
from paretorch.core.step.noise import key_of, spread, uniform, uniform_all, uniform_flat
from paretorch.errors import ConfigError
from paretorch.methods.precision.grid import power_of_two, quantize
from paretorch.methods.precision.levels import Leveled, LevelOptions
from paretorch.support.checks import require_number


class NoisyOptions(LevelOptions, Protocol):
    """The options of a method that searches under noise."""

    @property
    def zero_precision(self) -> bool: ...
    @property
    def clip_finetuning(self) -> bool: ...


class Precision(Leveled):
    """W = w + 2^k σ(s) ⊙ ε while searching; W = 2^k Q(w / 2^k, p) once hard.

    limits_noise: the noise of a weight that would be zero is |w| ⊙ ε.
    """

    kind: ClassVar[str] = "precision"
    differs_in_eval: ClassVar[bool] = True
    zero: Tensor
    power: Tensor

    def __init__(
        self,
        method: NoisyOptions,
        site: Site,
        grouping: Grouping,
        seed: int,
        exponent: int,
        offset: float | None,
        limits_noise: bool,
    ) -> None:
        device = site.weight.device
        super().__init__(method, grouping, seed, device)
        self.scale_offset, self.zero_precision, self.limits_noise = offset, method.zero_precision, limits_noise
        self.clips_hard = method.clip_finetuning
        self.start = 0
        """Which number of the noise is the first."""
        self.register_buffer("power", torch.tensor(exponent, dtype=torch.int32, device=device))
        shape = site.weight.shape if method.zero_precision else torch.Size(())
        self.register_buffer("zero", torch.zeros(shape, dtype=torch.bool, device=device))

    @property
    def scale(self) -> Tensor:
        return power_of_two(self.power)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if f"{prefix}zero" in state_dict:  # a state that names tied weights once has nothing of this one
            state_dict.setdefault(f"{prefix}power", self.power)  # states from before it was kept
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def of_rows(self, part: slice) -> Self | None:
        found = self._of_rows(part, *(("zero",) if self.zero_precision else ()))
        if found is not None:
            found.start = self.start + part.start * math.prod(self.grouping.shape[1:])
        return found

    def batch_key(self) -> Hashable:
        levels = (self.most, self.allowed, self.rounding, self.clips_hard)
        return (self.hard, self.training, self.limits_noise, self.zero_precision, levels)

    @property
    def is_flat(self) -> bool:
        return self.grouping.is_single and not self.limits_noise and not self.zero_precision

    @property
    def can_fuse(self) -> bool:
        return not self.limits_noise and not self.zero_precision and (self.hard or self.training)

    @classmethod
    def form(cls, members: Sequence["Precision"]) -> Form:
        first = members[0]
        powers = [one.power for one in members]
        if first.hard:
            levels = [one.grouping.expand(one.levels(one.grid())) for one in members]
            return Form("grid", powers=powers, levels=levels, clips=first.clips_hard)
        keys = [key_of(one.seed) for one in members]
        rows = None if first.grouping.is_single else NoiseRows(members)
        return Form("noise", rows, powers=powers, keys=keys, step=first.step, clips=True)

    @property
    def is_elementwise(self) -> bool:
        return self.hard and self.grouping.is_single and not self.zero_precision

    @classmethod
    def apply_all(
        cls, members: Sequence["Precision"], grids: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> list[Tensor]:
        first = members[0]
        if len(weights) < len(members):
            return cls._apply_flat(members, grids[0], weights[0])
        if first.hard:
            levels = [one.grouping.expand(one.levels(s)) for one, s in zip(members, grids, strict=True)]
            return [one.quantize(weight, p) for one, weight, p in zip(members, weights, levels, strict=True)]
        if not first.training:
            return list(weights)
        shapes, seeds = [weight.shape for weight in weights], [one.seed for one in members]
        if len(members) == 1:
            noise = [uniform(shapes[0], first.step, first.seed, first.start)]
        else:
            noise = uniform_all(shapes, first.step, seeds)
        reach = cls._reach_all(members, grids, weights)
        dtype = weights[0].dtype
        if dtype == torch.float32:
            return list(torch._foreach_addcmul(list(weights), noise, reach))
        moved = torch._foreach_mul(noise, reach)
        return list(torch._foreach_add(list(weights), [one.to(dtype) for one in moved]))

    @classmethod
    def _apply_flat(cls, members: Sequence["Precision"], s: Tensor, weight: Tensor) -> list[Tensor]:
        first = members[0]
        if not first.training and not first.hard:
            return [weight]
        scales = cls._flat_scales(members)
        if first.hard:
            return [quantize(weight / scales, first.levels(s)).mul_(scales)]
        noise = uniform_flat(_sizes(members), first.step, [one.seed for one in members])
        return [torch.addcmul(weight, noise, torch.sigmoid(s).mul_(scales))]

    @classmethod
    def _flat_scales(cls, members: Sequence["Precision"]) -> Tensor:
        return spread(power_of_two(torch.stack([one.power for one in members])), _sizes(members))

    @classmethod
    def _reach_all(
        cls, members: Sequence["Precision"], grids: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> list[Tensor]:
        """How far the noise of each weight goes: 2^k σ(s)."""
        if members[0].limits_noise:
            return [one.reach(weight, s) for one, weight, s in zip(members, weights, grids, strict=True)]
        scales = torch.stack([one.power for one in members])
        reach = torch._foreach_mul(torch._foreach_sigmoid(list(grids)), list(power_of_two(scales).unbind()))
        return [one.grouping.expand(value) for one, value in zip(members, reach, strict=True)]

    @classmethod
    def pull_all(
        cls,
        members: Sequence["Precision"],
        grids: Sequence[Tensor],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        decide: bool,
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        # W = w + 2^k σ(s) ε: ∂W/∂w = 1 and, since 2^k ε = (W − w)/σ(s), ∂W/∂s = (W − w)(1 − σ(s)). Once hard, straight through.
        first, own = members[0], list(gradients)
        if first.hard and first.zero_precision:
            own = [gradient * ~one.zero for one, gradient in zip(members, gradients, strict=True)]
        if not decide:
            return own, None
        moved = list(torch._foreach_mul(torch._foreach_sub(list(outputs), list(inputs)), list(gradients)))
        if first.limits_noise:  # noise that is limited to |w| does not depend on s
            full = (one.has_full_noise(weight, s) for one, weight, s in zip(members, inputs, grids, strict=True))
            moved = [one * own for one, own in zip(moved, full, strict=True)]
        if len(moved) < len(members):
            return own, [moved[0].mul_(torch.sigmoid(grids[0].neg()))]
        reduced = [one.grouping.reduce(value.to(torch.float32)) for one, value in zip(members, moved, strict=True)]
        return own, list(torch._foreach_mul(reduced, torch._foreach_sigmoid(torch._foreach_neg(list(grids)))))

    @classmethod
    def limit_all(cls, members: Sequence["Precision"], grids: Sequence[Tensor]) -> list[Tensor]:
        first = members[0]
        if len(grids) < len(members):
            half = first.half_step(grids[0]) if first.hard else torch.sigmoid(grids[0])
            return [half.neg_().add_(2.0).mul_(cls._flat_scales(members))]
        scales = list(power_of_two(torch.stack([one.power for one in members])).unbind())
        if first.hard:
            halves = [one.half_step(s) for one, s in zip(members, grids, strict=True)]
        else:
            halves = list(torch._foreach_sigmoid(list(grids)))
        bounds = torch._foreach_mul(torch._foreach_add(torch._foreach_neg(halves), 2.0), scales)
        return [one.grouping.expand(bound) for one, bound in zip(members, bounds, strict=True)]

    @classmethod
    def keep_all(cls, members: Sequence["Precision"], grids: Sequence[Tensor]) -> list[Tensor] | None:
        first = members[0]
        return super().keep_all(members, grids) if first.hard and first.zero_precision else None

    def forward(self, weight: Tensor) -> Tensor:
        return self.apply_all([self], [self.grid()], [weight])[0]

    def has_full_noise(self, weight: Tensor, s: Tensor) -> Tensor:
        """Whether the noise of each weight is not limited to |w|."""
        return weight.to(torch.float32).abs() > 0.5 * self.scale * self.grouping.expand(torch.sigmoid(s))

    def reach(self, weight: Tensor, s: Tensor) -> Tensor:
        """How far the noise of each weight goes."""
        reach = self.scale * self.grouping.expand(torch.sigmoid(s))
        if self.limits_noise:
            size = weight.to(torch.float32).abs()
            reach = torch.where(size <= 0.5 * reach, size, reach)
        return reach

    def quantize(self, weight: Tensor, p: Tensor) -> Tensor:
        value = quantize(weight.to(torch.float32) / self.scale, p) * self.scale
        if self.zero_precision:
            value = value * ~self.zero
        return value.to(weight.dtype)

    def is_zero(self, weight: Tensor, p: Tensor) -> Tensor:
        """Zero-precision allocation: |w| ≤ |w − Q(w, p)|."""
        scaled = weight.to(torch.float32) / self.scale
        return scaled.abs() <= (scaled - quantize(scaled, p)).abs()

    def find_zeros(self, weight: Tensor, p: Tensor) -> None:
        self.zero.copy_(self.is_zero(weight, self.grouping.expand(p)))

    def keep(self, s: Tensor) -> Tensor | None:
        return (~self.zero).to(torch.float32) if self.hard and self.zero_precision else None

    def survives(self, s: Tensor) -> Tensor | None:
        return self.keep(s)

    def limit(self, s: Tensor) -> Tensor:
        half = self.half_step(s) if self.hard else torch.sigmoid(s)
        return self.scale * (2.0 - self.grouping.expand(half))

    def half_step(self, s: Tensor) -> Tensor:
        """Half of the distance between two values, once hard; −∞ lets weights leave the grid."""
        half = power_of_two(1 - self.levels(s))
        return half if self.clips_hard else torch.full_like(half, -torch.inf)

    def scale_exponent(self) -> int | None:
        return int(self.power)


class NoiseRows:
    """2^k σ(s) of all rows of several weights, for precisions that whole rows share."""

    def __init__(self, members: Sequence[Precision]) -> None:
        self._decisions, self._powers = [one.decision for one in members], [one.power for one in members]
        self._lengths = [one.numel() for one in self._decisions]

    def forward(self) -> tuple[Tensor, Tensor]:
        scales = spread(power_of_two(torch.stack(self._powers)), self._lengths)
        reach = torch.sigmoid(flatten(self._decisions)) * scales
        return reach, 2.0 * scales - reach

    def backward(self) -> Tensor:
        return self.forward()[0]

    def gradients(self, sums: Tensor, squares: Tensor | None) -> list[Tensor]:
        return unflatten(sums * torch.sigmoid(-flatten(self._decisions)), self._decisions)


def _sizes(members: Sequence[Precision]) -> list[int]:
    return [one.decision.numel() for one in members]


MOST = MOST_SAMPLES


def noise_samples(model: nn.Module, count: int) -> Iterator[int]:
    """Yield 0, 1, … count − 1, with noise of its own for each; the first is what a step without samples has."""
    require_number("count", count, 1, MOST, f"give a whole number of samples from 1 to {MOST}")
    if count != int(count):
        raise ConfigError(f"count={count!r}: give a whole number of samples from 1 to {MOST}")
    return _samples(Plan.of(model), int(count))


def _samples(plan: Plan, count: int) -> Iterator[int]:
    start = plan.step_on_host()
    for number in range(count):
        with plan.noise_sample(number):
            yield number
        if start is not None and plan.step_on_host() != start:
            raise ConfigError("plan.step() was called between two samples: call it once, after the loop over them")
