"""SMOL: learned precision (chapter 5, Definition 5.5 and Algorithm 5).

    W = w + σ(s) ⊙ ε, ε ~ U(−1, 1),   price λ Σ log₂(1 + e⁻ˢ),   w clipped to ±(2 − σ(s)),
    p = ⌊1 + log₂(1 + e⁻ˢ)⌋,   then W = Q(w, p) with straight-through gradients.

What differs from the printed algorithm, which `SMOL.as_printed` is:

- `target_bits`: λ follows the error of the average bits against a falling goal (proportional and integral), and at
  `harden` one common offset to all precisions makes the average exact.
- `scale` 2^k: the grid times a power of two, per layer, so that weights of any magnitude can use it (see
  `paretorch.methods.precision.scales`); "fit" is 1, as printed, unless the weights lie outside ±2 at the start.
- Zero precision is given where |w| ≤ |w − Q(w, p)|; a dropped weight counts no bits, in a search with a target too (see
  `paretorch.methods.precision.zeros`).
- With zero precision and a target below half a bit, the noise of a weight that would be zero reaches as far as |w|: what it loses
  when it is rounded. As printed it would be larger than most weights, which then grow to be heard, and scales with them;
  a network without norms (an LSTM, say) does not train like that.
- While fine-tuning, w is clipped to ±(2 − 2^(1−p)), the ends of its grid, unless `clip_finetuning` is False, as printed.
- `rounding` is "floor", as in the thesis' experiments; Algorithm 5 prints "round".
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Site
from paretorch.core.groups import Grouping
from paretorch.core.method import Method, Steered, Term
from paretorch.core.step.noise import uniform_all
from paretorch.core.step.optimizers import adam
from paretorch.core.step.schedules import cubic, progress
from paretorch.errors import ConfigError, MissedTargetWarning
from paretorch.methods.precision.allocate import allocate, make_room
from paretorch.methods.precision.grid import (
    MAX_BITS,
    level_above,
    power_of_two,
    quantize,
    real_bits,
    require_digits,
    s_of_bits,
)
from paretorch.methods.precision.leveled import Leveled
from paretorch.methods.precision.scales import Scaled, check_scale, exponent_for, follow, lead_for
from paretorch.methods.precision.zeros import are_found, count_search
from paretorch.support.checks import require_number
from paretorch.support.sharded import whole
from paretorch.support.warn import warn

_QUIET = 0.5  # bits of a target: below, the noise of what will be zero is held to what it loses
_FELT = 0.05  # bits above the target that are worth a word
_UNKNOWN_BITS = 3.0  # of a kept weight, that "auto" scales for where no target says
_FOLLOW = 8  # steps after which scales are looked at on a GPU
_PROPORTIONAL, _INTEGRAL = 40.0, 800.0  # of ln λ against the relative error of the bits


@dataclass(frozen=True, kw_only=True)
class SMOL(Steered, Method):
    """Learn how many bits each weight needs.

    target_bits: average bits over the selected weights, dropped ones counting 0; None: `penalty` decides.
    penalty: λ, the price of one bit; with a target, only where λ starts (None: 0.27 over the number of weights, which
    is the thesis' 1e-6 for ResNet-20). init_bits: precision at the start. anneal: share of the steps until the target.
    zero_precision: give 0 bits to weights that are nearer to zero than to their grid. rounding: "floor" or "round".
    allowed_bits: only these precisions. scale: of a layer's grid, 2^k: "auto" (what suits its weights at about the target's
    bits, and follows them), "fit" (1, or larger where its weights do not fit into ±2), or the exponent k.
    lr: of the decisions' Adam; None: 1e-3, or more where the steps would not suffice to reach the target.
    clip_finetuning: keep weights within their grid after `harden`, too.
    """

    target_bits: float | None = None
    penalty: float | None = None
    init_bits: float = 8.0
    anneal: float = 0.85
    zero_precision: bool = False
    rounding: str = "floor"
    allowed_bits: tuple[int, ...] = ()
    scale: str | int = "auto"
    lr: float | None = None
    clip_finetuning: bool = True

    room: ClassVar[str] = "precision"
    unit: ClassVar[str] = "bits"
    order: ClassVar[int] = 1
    scalars: ClassVar[tuple[str, ...]] = ("price", "integral")
    per_layer: ClassVar[frozenset[str]] = frozenset(
        {"group", "init_bits", "zero_precision", "rounding", "allowed_bits", "scale"}
    )

    @classmethod
    def as_printed(cls, penalty: float, *, init_bits: float = 8.0, rounding: str = "round", **options: Any) -> Self:
        """Algorithm 5 to the letter: λ decides, the grid has no scale, s has Adam at 1e-3, no clipping after rounding.

        Args:
            penalty: λ.
            init_bits: p_init.
            rounding: As the algorithm has it; "floor" is what the thesis' experiments have.
            options: Other fields, such as `group`, `zero_precision` and `exclude`.

        Example:
            >>> SMOL.as_printed(1e-6, rounding="floor").scale
            0
        """
        printed: dict[str, Any] = {"scale": 0, "lr": 1e-3, "clip_finetuning": False}
        return cls(penalty=penalty, init_bits=init_bits, rounding=rounding, **printed, **options)

    def check(self) -> None:
        super().check()
        hint = f"give more than 1 and at most {MAX_BITS}"
        require_number("init_bits", self.init_bits, 1.0, MAX_BITS, hint, above=True)
        if self.target_bits is not None:
            hint = f"give the average bits, above 0, up to {MAX_BITS}"
            require_number("target_bits", self.target_bits, 0.0, MAX_BITS, hint, above=True)
            if self.target_bits > self.init_bits:
                raise ConfigError(
                    f"target_bits={self.target_bits!r} is above init_bits={self.init_bits!r}: start with more bits than you aim for"
                )
        if self.penalty is not None:
            require_number("penalty", self.penalty, 0.0, math.inf, "a price is 0 or more")
        if self.lr is not None:
            require_number("lr", self.lr, 0.0, math.inf, "give a positive rate, or None", above=True)
        hint = "give the share of the steps until the target, above 0, up to 1"
        require_number("anneal", self.anneal, 0.0, 1.0, hint, above=True)
        if not isinstance(self.allowed_bits, tuple):
            raise ConfigError(f"allowed_bits={self.allowed_bits!r}: give a tuple such as (1, 2, 4, 8)")
        if self.rounding not in ("floor", "round"):
            raise ConfigError(f'rounding={self.rounding!r}: use "floor" or "round"')
        if any(type(b) is not int or not 1 <= b <= MAX_BITS for b in self.allowed_bits):
            raise ConfigError(
                f"allowed_bits={self.allowed_bits!r}: give whole numbers from 1 to {MAX_BITS}, such as (1, 2, 4, 8)"
            )
        most = max(self.allowed_bits, default=MAX_BITS)
        if self.target_bits is not None and self.target_bits > most:
            raise ConfigError(
                f"target_bits={self.target_bits!r} is above the largest of allowed_bits, {most}: allow more"
            )
        check_scale(self.scale)

    def for_site(self, site: Site) -> Self:
        # A target is about all layers together: one of them may well be held below it, or above.
        own = super(SMOL, replace(self, target_bits=None)).for_site(site)
        return replace(own, target_bits=self.target_bits)

    def check_beside(self, rooms: set[str]) -> None:
        lowest = min(self.allowed_bits, default=1)
        if (
            self.target_bits is not None
            and self.target_bits < lowest
            and not self.zero_precision
            and rooms == {self.room}
        ):
            raise ConfigError(
                f"target_bits={self.target_bits!r} is below the {lowest} that every weight gets: use zero_precision=True, "
                "or a sparsity method beside it"
            )

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "Precision":
        # Beside masks a target counts the dropped weights too, and so says nothing of those that are kept.
        target = None if "sparsity" in together else self.target_bits
        lead = lead_for(_UNKNOWN_BITS if target is None else target, self.zero_precision)
        exponent = exponent_for(site, self.scale, lead)
        require_digits(site.name, site.weight.dtype, level_above(self.init_bits, self.allowed_bits))
        quiet = self.zero_precision and target is not None and target < _QUIET
        return Precision(self, site, grouping, seed, exponent, lead if self.scale == "auto" else None, quiet)

    def decisions_optimizer(self, parameters: list[nn.Parameter], steps: int) -> torch.optim.Optimizer:
        lr = 1e-3 if self.lr is None else self.lr
        if self.lr is None and self.target_bits is not None:
            way = float(s_of_bits(max(self.target_bits, 1.2)) - s_of_bits(self.init_bits))
            lr = max(lr, 3.0 * abs(way) / (self.anneal * steps))
        return adam(parameters, lr)

    def schedule(self, term: Term, step: Tensor) -> None:
        if self.target_bits is None:
            term.set_scalar("price", self._start_price(term))

    def _start_price(self, term: Term) -> float:
        return self.penalty if self.penalty is not None else 0.27 / max(term.weights, 1)

    def price(self, term: Term) -> Tensor | None:
        return term.scalar("price")

    @property
    def is_steered(self) -> bool:
        return self.target_bits is not None

    def steer(self, term: Term, step: Tensor) -> None:
        # Weights move slowly, and a scale by whole powers of two: on a GPU, where launches cost, not at every step.
        if term.count is None or term.count % _FOLLOW == 0 or not step.is_cuda:
            _follow_weights(term)
        if self.target_bits is None:
            return
        if are_found(term) or term.loses_channels:
            share, bits = count_search(term)
        else:
            kept = term.kept_sample()
            share, bits = torch.stack([kept, kept * real_bits(term.read(self.room))]).mv(term.sample.share)
        goal = cubic(progress(step, self.anneal * term.steps), self.init_bits * share, self.target_bits)
        error = (bits - goal) / self.init_bits
        integral = (term.scalar("integral") + error / term.steps).clamp(-0.02, 0.02)
        term.set_scalar("integral", integral)
        exponent = (_PROPORTIONAL * error + _INTEGRAL * integral).clamp(-30.0, 30.0)
        term.set_scalar("price", self._start_price(term) * torch.exp(exponent))

    def round(self, term: Term, factor: float) -> None:
        budget = None
        if self.target_bits is not None or factor != 1.0:
            target = self.target_bits if self.target_bits is not None else float(_average(term))
            budget = target * factor * term.weights
        members = [r for r in term.relaxations if isinstance(r, Precision)]
        if budget is not None:
            _follow_weights(term)  # a smaller factor may have made room before
            make_room(term, members, budget)
        bits, least = allocate(term, members, budget)
        if self.target_bits is not None and factor == 1.0 and least > (self.target_bits + _FELT) * term.weights:
            zeros = "weights above half of their layer's scale keep a bit: use a sparsity method beside it"
            others = (
                "every kept weight has at least the lowest precision: drop more of them, or use zero_precision=True"
            )
            why = f"{bits / term.weights:.3g} is the least here, since {zeros if self.zero_precision else others}"
            warn(f"target_bits={self.target_bits!r}: {why}", MissedTargetWarning)

    @property
    def share(self) -> float | None:
        return self.target_bits

    def aim(self, share: float) -> Self:
        most = min(self.init_bits, max(self.allowed_bits, default=MAX_BITS))
        return self if self.target_bits is not None else replace(self, target_bits=min(share, most))

    def measure(self, term: Term) -> dict[str, Tensor]:
        return {"bits": _average(term), "bit_price": term.scalar("price")}


def _follow_weights(term: Term) -> None:
    if not term.is_on_weights:
        return
    layers = zip(term.relaxations, term.latents(), term.chains, strict=True)
    scaled = [(r, latent, chain) for r, latent, chain in layers if isinstance(r, Precision) and r.lead is not None]
    follow([Scaled(r.power, r.lead or 0.0, latent, chain.survives()) for r, latent, chain in scaled])


def _average(term: Term) -> Tensor:
    """Bits per selected weight as they would count if rounded now: a weight that would be dropped counts 0."""
    if are_found(term) and not term.relaxations[0].hard:
        return count_search(term)[1]
    bits = []
    for r, chain in zip(term.relaxations, term.chains, strict=True):
        own, kept = r.bits(r.grid(whole(r.decision))), chain.survives()
        assert own is not None
        used = own if kept is None else own * kept
        bits.append(used.sum() * (math.prod(r.grouping.shape) / used.numel()))
    return torch.stack(bits).sum() / term.weights


class Precision(Leveled):
    """W = w + 2^k σ(s) ⊙ ε while searching; W = 2^k Q(w / 2^k, p) once hard.

    quiet: the noise of a weight that would be zero is |w| ⊙ ε.
    """

    room: ClassVar[str] = "precision"
    differs_in_eval: ClassVar[bool] = True
    zero: Tensor
    power: Tensor

    def __init__(
        self, method: SMOL, site: Site, grouping: Grouping, seed: int, exponent: int, lead: float | None, quiet: bool
    ) -> None:
        device = site.weight.device
        super().__init__(method, grouping, seed, device)
        self.lead, self.zero_precision, self.quiet = lead, method.zero_precision, quiet
        self.clips_hard = method.clip_finetuning
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

    def batch_key(self) -> Hashable:
        return (self.hard, self.training, self.quiet, self.zero_precision)

    @property
    def is_elementwise(self) -> bool:
        return self.hard and self.grouping.is_single and not self.zero_precision

    @classmethod
    def apply_all(
        cls, members: Sequence["Precision"], grids: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> list[Tensor]:
        first = members[0]
        if first.hard:
            levels = [one.grouping.expand(one.levels(s)) for one, s in zip(members, grids, strict=True)]
            return [one.quantize(weight, p) for one, weight, p in zip(members, weights, levels, strict=True)]
        if not first.training:
            return list(weights)
        shapes, seeds = [weight.shape for weight in weights], [one.seed for one in members]
        noise = uniform_all(shapes, first.step, seeds)
        reach = cls._reach_all(members, grids, weights)
        dtype = weights[0].dtype
        if dtype == torch.float32:
            return list(torch._foreach_addcmul(list(weights), noise, reach))
        moved = torch._foreach_mul(noise, reach)
        return list(torch._foreach_add(list(weights), [one.to(dtype) for one in moved]))

    @classmethod
    def _reach_all(
        cls, members: Sequence["Precision"], grids: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> list[Tensor]:
        """How far the noise of each weight goes: 2^k σ(s)."""
        if members[0].quiet:
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
        if first.quiet:  # noise that is held to |w| does not depend on s
            loud = (one.is_loud(weight, s) for one, weight, s in zip(members, inputs, grids, strict=True))
            moved = [one * own for one, own in zip(moved, loud, strict=True)]
        reduced = [one.grouping.reduce(value.to(torch.float32)) for one, value in zip(members, moved, strict=True)]
        return own, list(torch._foreach_mul(reduced, torch._foreach_sigmoid(torch._foreach_neg(list(grids)))))

    @classmethod
    def limit_all(cls, members: Sequence["Precision"], grids: Sequence[Tensor]) -> list[Tensor]:
        first = members[0]
        scales = list(power_of_two(torch.stack([one.power for one in members])).unbind())
        if first.hard:
            halves = [one.half_step(s) for one, s in zip(members, grids, strict=True)]
        else:
            halves = list(torch._foreach_sigmoid(list(grids)))
        bounds = torch._foreach_mul(torch._foreach_add(torch._foreach_neg(halves), 2.0), scales)
        return [one.grouping.expand(bound) for one, bound in zip(members, bounds, strict=True)]

    def forward(self, weight: Tensor) -> Tensor:
        return self.apply_all([self], [self.grid()], [weight])[0]

    def is_loud(self, weight: Tensor, s: Tensor) -> Tensor:
        """Whether the noise of each weight is not held to |w|."""
        return weight.to(torch.float32).abs() > 0.5 * self.scale * self.grouping.expand(torch.sigmoid(s))

    def reach(self, weight: Tensor, s: Tensor) -> Tensor:
        """How far the noise of each weight goes."""
        reach = self.scale * self.grouping.expand(torch.sigmoid(s))
        if self.quiet:
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
