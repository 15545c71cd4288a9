"""SMOL: learned precision (chapter 5, Definition 5.5 and Algorithm 5).

    W = w + σ(s) ⊙ ε, ε ~ U(−1, 1),   price λ Σ log₂(1 + e⁻ˢ),   w clipped to ±(2 − σ(s)),
    p = ⌊1 + log₂(1 + e⁻ˢ)⌋,   then W = Q(w, p) with straight-through gradients.

What differs from the printed algorithm, which `SMOL.as_printed` is:

- `target_bits`: λ follows the error of the average bits against a falling goal (proportional and integral), and at
  `harden` one common offset to all precisions makes the average exact.
- `scale` 2^k: the grid times a power of two, per layer, so that weights of any magnitude can use it (see
  `paretorch.methods.precision.grid`); "fit" is 1, as printed, unless the weights lie outside ±2 at the start.
- Zero precision is given where |w| ≤ |w − Q(w, p)|; a dropped weight counts no bits, in a search with a target too (see
  `paretorch.methods.precision.levels`).
- With zero precision and a target below half a bit, the noise of a weight that would be zero reaches as far as |w|: what it loses
  when it is rounded. As printed it would be larger than most weights, which then grow to be heard, and scales with them;
  a network without norms (an LSTM, say) does not train like that.
- While fine-tuning, w is clipped to ±(2 − 2^(1−p)), the ends of its grid, unless `clip_finetuning` is False, as printed.
- `rounding` is "floor", as in the thesis' experiments; Algorithm 5 prints "round".
- `format`, for trained weights: the values that a runtime stores, with learned steps (see `paretorch.methods.precision.stepped`).
- `scale="real"`, for trained weights: a real step per group on a grid with zero, by what the loss feels (see
  `paretorch.methods.precision.stepped` and `paretorch.methods.precision.step_sizes`). Bits are those that the codes take when entropy coded.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Site
from paretorch.core.formats import check_format, find_format, group_for
from paretorch.core.groups import Grouping
from paretorch.core.method import Method, Recordable, Steered, Term
from paretorch.core.step.optimizers import adam
from paretorch.core.step.schedules import cubic, progress
from paretorch.errors import ConfigError, MissedTargetWarning, warn
from paretorch.methods.precision.grid import (
    MAX_BITS,
    check_scale,
    exponent_for,
    level_above,
    real_bits,
    require_digits,
    s_of_bits,
    scale_offset,
)
from paretorch.methods.precision.levels import (
    allocate,
    average_bits,
    count_search,
    may_be_zero,
    raise_scales,
    update_scales,
)
from paretorch.methods.precision.noisy import Precision
from paretorch.methods.precision.step_sizes import (
    count_bits,
    is_measured,
    settle,
    start_search,
    steer_steps,
    steps_of,
    update_price,
)
from paretorch.methods.precision.stepped import Formatted, Stepped
from paretorch.methods.precision.undecided import noise_size, raise_unseen, rounding_error, step_of, warn_large_change
from paretorch.support.checks import require_number

_LIMITED_BELOW = 0.5  # bits of a target: below, the noise of what will be zero is limited to what it loses
_MAX_EXCESS = 0.05  # bits above the target without a warning
_UNKNOWN_BITS = 3.0  # of a kept weight, that "auto" scales for where no target says
_SCALE_INTERVAL = 8  # steps between two updates of scales on a GPU
_TRAVEL = 0.3  # how far s of a real step may go
_NOISIER = 3.0  # times the noise of the search: rounding to the bits below at most doubles it
_MOVED = 0.25  # of log₂ of a step
_PROPORTIONAL, _INTEGRAL = 40.0, 800.0  # of ln λ against the relative error of the bits


@dataclass(frozen=True, kw_only=True)
class SMOL(Steered, Recordable, Method):
    """Learn how many bits each weight needs.

    target_bits: average bits over the selected weights, dropped ones counting 0; None: a budget, `penalty` or `init_bits` decides, of which
    one must be given.
    penalty: λ, the price of one bit; with a target, only where λ starts (None: 0.27 over the number of weights, which
    is the thesis' 1e-6 for ResNet-20). init_bits: precision at the start. anneal: share of the steps until the target.
    zero_precision: give 0 bits to weights that are nearer to zero than to their grid. rounding: "floor" or "round".
    allowed_bits: only these precisions. scale: of a layer's grid, 2^k: "auto" (what suits its weights at about the target's
    bits, and follows them), "fit" (1, or larger where its weights do not fit into ±2), or the exponent k; "real": with a target, steps of
    any size, one per group. None: "real" if weights are grouped and have a target or a budget, else "auto".
    lr: of the decisions' Adam; None: 1e-3, or more where the steps would not suffice to reach the target.
    clip_finetuning: keep weights within their grid after `harden`, too.
    format: of a runtime, such as "int4x32", "Q4_0": its bits, groups and steps in place of all other options. `compress(runtime=)` gives
    one to each layer.

    Example:
        >>> import torch, paretorch as pt
        >>> model = torch.nn.Linear(64, 64)
        >>> plan = pt.compress(model, pt.SMOL(target_bits=2.0), steps=100)
        >>> small = plan.finalize()  # after 100 steps of your loop
        >>> small.weight.unique().numel()  # values that two bits tell apart
        4
    """

    target_bits: float | None = None
    penalty: float | None = None
    init_bits: float = 8.0
    anneal: float = 0.85
    zero_precision: bool = False
    rounding: str = "floor"
    allowed_bits: tuple[int, ...] = ()
    scale: str | int | None = None
    lr: float | None = None
    clip_finetuning: bool = True
    format: str | None = None

    kind: ClassVar[str] = "precision"
    unit: ClassVar[str] = "bits"
    order: ClassVar[int] = 1
    scalars: ClassVar[tuple[str, ...]] = ("price", "integral")
    per_layer: ClassVar[frozenset[str]] = frozenset(
        {"group", "init_bits", "zero_precision", "rounding", "allowed_bits", "scale", "format"}
    )

    def __post_init__(self) -> None:
        if self.scale is None:
            object.__setattr__(self, "scale", "real" if self._can_use_real_steps() else "auto")

    def _can_use_real_steps(self) -> bool:
        """Whether real steps can do what these options ask for: no option of the printed search is used."""
        searched = self.penalty is not None or (self.init_bits, self.anneal, self.rounding) != (8.0, 0.85, "floor")
        overrides = self.overrides.values() if isinstance(self.overrides, Mapping) else ()
        own = [{"group": self.group, "zero_precision": self.zero_precision, "allowed_bits": self.allowed_bits}]
        layers = [options for options in (*own, *overrides) if isinstance(options, Mapping)]
        return not searched and not any(_is_printed(options) for options in layers)

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
        if self.format is not None:
            self._check_format(self.format)
        hint = f"give more than 1 and at most {MAX_BITS}"
        require_number("init_bits", self.init_bits, 1.0, MAX_BITS, hint, above=True)
        if self.target_bits is not None:
            hint = f"give the average bits, above 0, up to {MAX_BITS}"
            require_number("target_bits", self.target_bits, 0.0, MAX_BITS, hint, above=True)
            if self.target_bits > self.init_bits and not self.is_real:
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
        if self.scale == "real":
            self._check_real()
        else:
            check_scale(self.binary_scale)

    @property
    def is_real(self) -> bool:
        """Whether steps are real numbers, not powers of two; without a target nothing says how large they should be."""
        return self.scale == "real" and self.target_bits is not None

    @property
    def binary_scale(self) -> str | int:
        """The scale of a grid of powers of two."""
        return "auto" if self.scale is None or self.scale == "real" else self.scale

    def _check_format(self, name: str) -> None:
        check_format(name)
        given = {
            "target_bits": self.target_bits is not None,
            "penalty": self.penalty is not None,
            "zero_precision": self.zero_precision,
            "allowed_bits": bool(self.allowed_bits),
        }
        if options := [option for option, is_given in given.items() if is_given]:
            raise ConfigError(f"format={name!r} says how many bits a weight takes: leave out {', '.join(options)}")

    def _check_real(self) -> None:
        if self.group == "weight":
            raise ConfigError(
                'scale="real" has one step per group: use group="channel", "layer", or a block shape such as (1, 32)'
            )
        if self.penalty is not None:
            raise ConfigError('scale="real" needs no penalty: give target_bits, or a budget')
        if self.zero_precision or self.allowed_bits:
            option = "zero_precision" if self.zero_precision else "allowed_bits"
            raise ConfigError(f'scale="real" has zeros, and steps of any size: leave out {option}, or use scale="auto"')

    def for_site(self, site: Site) -> Self:
        # A target is about all layers together: one of them may well be held below it, or above.
        own = super(SMOL, replace(self, target_bits=None)).for_site(site)
        if (own.scale == "real") != (self.scale == "real"):
            raise ConfigError(
                f'overrides: {site.name} cannot differ in scale="real": use it for all layers, or for none'
            )
        if (own.format is None) != (self.format is None):
            raise ConfigError(
                f"overrides: {site.name} cannot differ in having a format: give one to all layers, or to none"
            )
        if own.format is not None:
            return replace(own, group=group_for(own.format, site))
        return replace(own, target_bits=self.target_bits)

    def check_goal(self) -> None:
        own = {"format": self.format, "init_bits": self.init_bits, "allowed_bits": self.allowed_bits}
        chosen = any(_decides(options) for options in (own, *self.overrides.values()))
        if self.target_bits is None and self.penalty is None and not chosen:
            raise ConfigError(
                f"{type(self).__name__} has nothing to say how many bits to keep: give target_bits=, such as 4.0, or compress a "
                "budget= or for a runtime=, or choose penalty= as the thesis does"
            )

    def check_beside(self, kinds: set[str]) -> None:
        lowest = min(self.allowed_bits, default=1)
        if (
            self.target_bits is not None
            and self.target_bits < lowest
            and not self.zero_precision
            and not self.is_real
            and kinds == {self.kind}
        ):
            raise ConfigError(
                f"target_bits={self.target_bits!r} is below the {lowest} that every weight gets: use zero_precision=True, "
                "or a sparsity method beside it"
            )

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> Precision | Stepped | Formatted:
        if self.format is not None:
            return Formatted(find_format(self.format), grouping, site.weight)
        if self.is_real:
            return Stepped(grouping, site.weight.device)
        # Beside masks a target counts the dropped weights too, and so says nothing of those that are kept.
        target = None if "sparsity" in together else self.target_bits
        offset = scale_offset(_UNKNOWN_BITS if target is None else target, self.zero_precision)
        exponent = exponent_for(site, self.binary_scale, offset)
        require_digits(site.name, site.weight.dtype, level_above(self.init_bits, self.allowed_bits))
        limits_noise = self.zero_precision and target is not None and target < _LIMITED_BELOW
        return Precision(
            self, site, grouping, seed, exponent, offset if self.binary_scale == "auto" else None, limits_noise
        )

    def decisions_optimizer(self, parameters: list[nn.Parameter], steps: int) -> torch.optim.Optimizer:
        if self.is_real or self.format is not None:
            return adam(parameters, _TRAVEL / steps if self.lr is None else self.lr)
        lr = 1e-3 if self.lr is None else self.lr
        if self.lr is None and self.target_bits is not None:
            way = float(s_of_bits(max(self.target_bits, 1.2)) - s_of_bits(self.init_bits))
            lr = max(lr, 3.0 * abs(way) / (self.anneal * steps))
        return adam(parameters, lr)

    def schedule(self, term: Term, step: Tensor) -> None:
        if self.is_real:
            if term.optimizer is None and term.count is None and int(step) == 0:
                assert self.target_bits is not None
                start_search(term, self.target_bits)
        elif self.target_bits is None and self.format is None:
            term.set_scalar("price", self._start_price(term))

    def recording(self, term: Term) -> str | None:
        if term.count is None or (self.is_real and is_measured(term, term.count)):
            return None
        return "scales" if term.count % _SCALE_INTERVAL == 0 else "all"

    def _start_price(self, term: Term) -> float:
        return self.penalty if self.penalty is not None else 0.27 / max(term.weights, 1)

    def price(self, term: Term) -> Tensor | None:
        if self.format is not None:
            return None
        if self.is_real:
            update_price(term)
        return term.scalar("price")

    @property
    def is_steered(self) -> bool:
        return self.target_bits is not None

    def _updates_scales(self, term: Term, step: Tensor) -> bool:
        return term.count is None or term.count % _SCALE_INTERVAL == 0 or not step.is_cuda

    def steer(self, term: Term, step: Tensor) -> None:
        if self.is_real:
            assert self.target_bits is not None
            steer_steps(term, step, self.target_bits, corrects=self._updates_scales(term, step))
            return
        if self.format is not None:
            return
        # Weights move slowly, and a scale by whole powers of two: on a GPU, where launches cost, not at every step.
        if self._updates_scales(term, step):
            update_scales(term)
        if self.target_bits is None:
            return
        if may_be_zero(term) or term.loses_channels:
            share, bits = count_search(term)
        else:
            kept = term.kept_sample()
            share, bits = torch.stack([kept, kept * real_bits(term.read(self.kind))]).mv(term.sample.share)
        goal = cubic(progress(step, self.anneal * term.steps), self.init_bits * share, self.target_bits)
        error = (bits - goal) / self.init_bits
        integral = (term.scalar("integral") + error / term.steps).clamp(-0.02, 0.02)
        term.set_scalar("integral", integral)
        exponent = (_PROPORTIONAL * error + _INTEGRAL * integral).clamp(-30.0, 30.0)
        term.set_scalar("price", self._start_price(term) * torch.exp(exponent))

    def round(self, term: Term, factor: float) -> None:
        if self.format is not None:
            for r in term.relaxations:
                assert isinstance(r, Formatted)
                r.settle()
            return
        raise_unseen(term, warns=factor == 1.0)
        if self.is_real:
            assert self.target_bits is not None
            moved = settle(term, self.target_bits * factor, untrained=step_of(term) == 0)
            if factor == 1.0 and moved > _MOVED:
                warn_large_change(term, f"steps change by a factor of {2.0**moved:.2g} on average to meet the target")
            return
        budget = None
        if self.target_bits is not None or factor != 1.0:
            target = self.target_bits if self.target_bits is not None else float(average_bits(term))
            budget = target * factor * term.weights
        members = [r for r in term.relaxations if isinstance(r, Precision)]
        if budget is not None:
            update_scales(term)  # a smaller factor may have made room before
            raise_scales(term, members, budget)
        trained_with = noise_size(term, members)
        bits, least = allocate(term, members, budget)
        if factor == 1.0:
            ratio = rounding_error(term, members) / max(trained_with, 1e-30)
            if ratio > _NOISIER:
                warn_large_change(
                    term, f"weights move {ratio:.2g} times as far as by the noise that they were trained with"
                )
        if self.target_bits is not None and factor == 1.0 and least > (self.target_bits + _MAX_EXCESS) * term.weights:
            zeros = "weights above half of their layer's scale keep a bit: use a sparsity method beside it"
            others = (
                "every kept weight has at least the lowest precision: drop more of them, or use zero_precision=True"
            )
            why = f"{bits / term.weights:.3g} is the least here, since {zeros if self.zero_precision else others}"
            warn(f"target_bits={self.target_bits!r}: {why}", MissedTargetWarning)

    @property
    def codes_zeros(self) -> bool:
        return self.scale == "real" or self.format is not None

    @property
    def share(self) -> float | None:
        return self.target_bits

    def with_target(self, share: float) -> Self:
        if self.format is not None:
            return self
        most = MAX_BITS if self.scale == "real" else min(self.init_bits, max(self.allowed_bits, default=MAX_BITS))
        return self if self.target_bits is not None else replace(self, target_bits=min(share, most))

    def measure(self, term: Term) -> dict[str, Tensor]:
        if self.is_real:
            return {"bits": count_bits(term, steps_of(term))}
        if self.format is not None:
            return {"bits": average_bits(term)}
        return {"bits": average_bits(term), "bit_price": term.scalar("price")}


def _decides(options: Mapping[str, Any]) -> bool:
    """Whether options say where the bits begin or must end, so that a default price may do the rest."""
    started = options.get("init_bits", SMOL.init_bits) != SMOL.init_bits
    return started or bool(options.get("format")) or len(options.get("allowed_bits", ())) == 1


def _is_printed(options: Mapping[str, Any]) -> bool:
    """Whether some of the options, of all layers or of some, have a meaning on the binary grid alone."""
    binary = (
        options.keys() & {"init_bits", "rounding", "scale"}
        or options.get("zero_precision")
        or options.get("allowed_bits")
    )
    return bool(binary) or options.get("group") in ("weight", "network")
