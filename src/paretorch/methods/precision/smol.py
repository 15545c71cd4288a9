"""SMOL: learned precision (chapter 5, Definition 5.5 and Algorithm 5).

    W = w + σ(s) ⊙ ε, ε ~ U(−1, 1),   price λ Σ log₂(1 + e⁻ˢ),   w clipped to ±(2 − σ(s)),
    p = ⌊1 + log₂(1 + e⁻ˢ)⌋,   then W = Q(w, p) with straight-through gradients.

What differs from the printed algorithm:

- `target_bits`: λ follows the error of the average bits against a falling goal (proportional and integral), and at
  `harden` one common offset to all precisions makes the average exact.
- `scale` 2^k: the grid times a power of two, per layer, so that weights of any magnitude can use it (see
  `paretorch.methods.precision.scales`); "fit" is 1, as printed, unless the weights lie outside ±2 at the start.
- Zero precision is given where |w| ≤ |w − Q(w, p)|; a dropped weight counts no bits, in a search with a target too (see
  `paretorch.methods.precision.zeros`).
- With zero precision and a target below half a bit, the noise of a weight that would be zero reaches as far as |w|: what it loses
  when it is rounded. As printed it would be larger than most weights, which then grow to be heard, and scales with them;
  a network without norms (an LSTM, say) does not train like that.
- While fine-tuning, w is clipped to ±(2 − 2^(1−p)), the ends of its grid.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Site
from paretorch.core.groups import Grouping
from paretorch.core.method import Method, Steered, Term
from paretorch.core.step.schedules import cubic, progress
from paretorch.core.step.solvers import adam
from paretorch.errors import ConfigError, MissedTargetWarning
from paretorch.methods.precision.allocate import allocate, make_room
from paretorch.methods.precision.grid import MAX_BITS, level_above, real_bits, require_digits, s_of_bits
from paretorch.methods.precision.noisy import Precision
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

    room: ClassVar[str] = "precision"
    unit: ClassVar[str] = "bits"
    order: ClassVar[int] = 1
    scalars: ClassVar[tuple[str, ...]] = ("price", "integral")
    per_layer: ClassVar[frozenset[str]] = frozenset(
        {"group", "init_bits", "zero_precision", "rounding", "allowed_bits", "scale"}
    )

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
