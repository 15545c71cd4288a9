"""Whole bits from searched precisions: s stands for 1 + log₂(1 + e⁻ˢ) bits, which one common offset brings to the target.

Zeros: a weight of p bits is nearer to zero than to its grid if |w| ≤ 2^k 2^(−p). While searching 2^(1−p) is σ(s), so the
condition is |w| ≤ 2^k σ(s)/2: within half of its noise. Such weights will count no bits. If they were counted as one at least, a
target below that would be out of reach, and the price would rise without end.

Two networks from one search ("Zero Precision Allocation", section 5.3) are the same s, rounded in two ways:

    plan = compress(model, SMOL(penalty=1e-6), steps=N)                              # … search …
    twin = compress(build(), SMOL(penalty=1e-6, zero_precision=True), steps=N)
    load_search(twin, model.state_dict())
    plan.harden(optimizer); twin.harden()                                            # fine-tune either
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, Self, cast

import torch
from torch import Tensor

from paretorch.core.groups import Grouping
from paretorch.core.method import Part, Term
from paretorch.core.plan import Plan
from paretorch.core.relaxation import PREFIX, Relaxation
from paretorch.core.rounding import raise_levels
from paretorch.core.step.sample import some, stride_for
from paretorch.errors import ConfigError
from paretorch.methods.precision.grid import (
    LOG2,
    MAX_BITS,
    Scaled,
    level_above,
    power_of_two,
    real_bits,
    s_of_bits,
    update_powers,
    whole_bits,
)
from paretorch.support.arithmetic import exact, widened
from paretorch.support.sharded import whole, write


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

    Weights may have more, which activations do without: a scale 2^power, `scale_offset` ahead of that of the weights if it follows
    them, and zeros, for weights that are nearer to zero than to their grid.
    """

    zero_precision: bool = False
    scale_offset: float | None = None
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


_SEEN = 2**16  # weights of a layer


def may_be_zero(term: Term) -> bool:
    """Return whether some of these weights may get zero precision."""
    return any(getattr(r, "zero_precision", False) for r in term.relaxations)


def count_search(term: Term) -> tuple[Tensor, Tensor]:
    """The share of the weights that other methods keep, and the bits per selected weight without those that would be zeros."""
    shares, bits = [], []
    for r, latent, chain in zip(cast(list[Leveled], term.relaxations), term.latents(), term.chains, strict=True):
        weight, kept = whole(latent), chain.survives()
        every = stride_for(weight.numel(), _SEEN)
        s = some(r.grouping.expand(r.grid(whole(r.decision))), every, weight)
        used = torch.ones_like(s) if kept is None else some(kept, every, weight)
        shares.append(used.mean() * weight.numel())
        if r.zero_precision:
            noise = power_of_two(r.power) * torch.sigmoid(s)
            used = used * (some(weight, every, weight).to(torch.float32).abs() > 0.5 * noise)
        bits.append((used * real_bits(s)).mean() * weight.numel())
    return torch.stack(shares).sum() / term.weights, torch.stack(bits).sum() / term.weights


_MOST_GROWTH = 16  # of log₂ of a scale


def update_scales(term: Term) -> None:
    """Bring the scales that follow their weights to where the weights are now."""
    if not term.is_on_weights:
        return
    layers = zip(cast(list[Leveled], term.relaxations), term.latents(), term.chains, strict=True)
    scaled = [(r, latent, chain) for r, latent, chain in layers if r.scale_offset is not None]
    update_powers([Scaled(r.power, r.scale_offset or 0.0, latent, chain.survives) for r, latent, chain in scaled])


def average_bits(term: Term) -> Tensor:
    """Bits per selected weight as they would count if rounded now: a weight that would be dropped counts 0."""
    if may_be_zero(term) and not term.relaxations[0].hard:
        return count_search(term)[1]
    bits = []
    for relaxation, chain in zip(term.relaxations, term.chains, strict=True):
        for _, r, part in chain.parts_of(relaxation):
            own, kept = r.bits(r.grid(whole(r.decision))), part.survives()
            assert own is not None
            used = own if kept is None else own * kept
            bits.append(used.sum() * (math.prod(r.grouping.shape) / used.numel()))
    return torch.stack(bits).sum() / term.weights


def allocate(term: Term, members: Sequence[Leveled], budget: float | None) -> tuple[float, float]:
    """Write whole bits into the decisions: as they stand (no budget), or raised or lowered together to `budget` bits.

    Of groups that are raised at the same offset, the first are, ties by index; the last of them where that is nearer to
    the budget than to do without. Returns the bits that they take, and the least that they could take.
    """
    pieces = _pieces(term, members)

    def cost(offset: float) -> float:
        return sum(piece.cost(piece.levels(offset)) for piece in pieces)

    low, high, left = 0.0, None, 0.0
    if budget is not None:
        # A short search with a high rate goes far.
        most = max(MAX_BITS, *(math.ceil(float(piece.real().max())) for piece in pieces))
        low, high = raise_levels(cost, budget, -most, MAX_BITS)
        left = budget - cost(low)
    taken = 0.0
    for piece in pieces:
        p = piece.levels(low)
        if high is not None:
            left = _fill(piece, p, piece.levels(high), left)
        for who in piece.members:
            if who.relaxation.zero_precision:
                who.relaxation.find_zeros(who.latent, who.relaxation.grid(p))
        write(piece.decision, s_of_bits(p.to(torch.float32) + 0.25))  # read back as p by either rounding
        taken += piece.cost(p)
    return taken, least_bits(term, members)


class _Member(NamedTuple):
    """A weight, or some rows of it, with those that other methods keep; None: all."""

    latent: Tensor
    relaxation: Leveled
    kept: Tensor | None

    def paying(self, p: Tensor) -> Tensor:
        """How many weights pay for each entry, if the precisions are these."""
        r = self.relaxation
        if self.kept is None:
            kept = torch.ones(r.grouping.shape, dtype=torch.float32, device=p.device)
        else:
            kept = self.kept.to(torch.float32).expand(r.grouping.shape)
        if r.zero_precision:
            kept = kept * ~r.is_zero(self.latent, r.grouping.expand(r.grid(p)))
        return widened(r.grouping.reduce(kept)).reshape(-1)


class _Piece(NamedTuple):
    """A decision, or some rows of it, with all weights that read it."""

    decision: Tensor
    members: list[_Member]

    def real(self) -> Tensor:
        return real_bits(whole(self.decision))

    def levels(self, offset: float) -> Tensor:
        return self.members[0].relaxation.raised(self.real(), offset)

    def bits(self, p: Tensor) -> Tensor:
        """What each entry costs with p bits."""
        found = [who.paying(p) for who in self.members]
        return (found[0] if len(found) == 1 else torch.stack(found).sum(0)).view(p.shape) * p

    def cost(self, p: Tensor) -> float:
        return float(self.bits(p).sum())


def _pieces(term: Term, members: Sequence[Leveled]) -> list[_Piece]:
    """All decisions once, large ones some rows at a time."""
    index = {id(r): i for i, r in enumerate(members)}
    found = []
    for decision, group, _ in term.groups():
        who = [index[id(r)] for r in group]
        parts = term.parts(who[0])
        if len(who) == 1 and len(parts) > 1:
            found += [_Piece(part.relaxation.decision, [_member(part)]) for part in parts]
        else:
            found.append(_Piece(decision, [_member(term.whole(i)) for i in who]))
    return found


def _member(part: Part) -> _Member:
    kept = part.chain.survives(but=part.relaxation)
    return _Member(part.latent, cast(Leveled, part.relaxation), None if kept is None else kept > 0)


def least_bits(term: Term, members: Sequence[Leveled]) -> float:
    """The bits that they would take with the lowest precision everywhere."""
    return sum(_least(term, i, r) for i, r in enumerate(members))


def raise_scales(term: Term, members: Sequence[Leveled], budget: float) -> None:
    """Zero precision, and scales that follow the weights: larger ones, until few enough weights keep a bit.

    One layer after another, each time where most is to be saved: were all to grow at once, the least that they could take would
    fall by half, and a target in between be missed by as much.
    """
    least = [_least(term, i, r) for i, r in enumerate(members)]
    growth = {i: _MOST_GROWTH for i, r in enumerate(members) if r.scale_offset is not None and r.zero_precision}
    while sum(least) > budget and any(growth.values()):
        first = max((i for i, left in growth.items() if left), key=least.__getitem__)
        members[first].power.add_(1)
        growth[first] -= 1
        least[first] = _least(term, first, members[first])


def _least(term: Term, index: int, r: Leveled) -> float:
    lowest = min(r.allowed, default=1)
    found = 0.0
    for part in term.parts(index):
        p = torch.full(part.relaxation.grouping.grid, lowest, dtype=torch.int32, device=r.decision.device)
        found += float(_member(part).paying(p).sum())
    return lowest * found


def _fill(piece: _Piece, chosen: Tensor, above: Tensor, left: float) -> float:
    """Raise entries to the next level in order of index until what is `left` is spent as nearly as can be, in place.

    The last one may cost more than is left, by less than it would leave unspent. Returns what is left; −∞ once one was not raised.
    """
    extra = exact((piece.bits(above) - piece.bits(chosen)).flatten())
    spent = torch.cumsum(extra, 0)
    taken = spent <= left + 1e-9
    count = int(taken.sum())
    if count < len(spent) and left > -math.inf:
        without = left - (float(spent[count - 1]) if count else 0.0)
        taken[count] = float(spent[count]) - left < without
    chosen.copy_(torch.where(taken.view(chosen.shape).to(chosen.device), above, chosen))
    return -math.inf if count < len(spent) else left - float(spent[-1])


_ROUNDING = frozenset({"zero_precision", "target_bits", "penalty", "rounding", "allowed_bits"})


def load_search(plan: Plan, state: Mapping[str, Tensor]) -> None:
    """Put the plan where another's search has ended, or is: weights, decisions and step, in place.

    state: of the other's model, before `harden`; a checkpoint will do. Both plans are of the same network with the same
    options, but for those that say how precisions are rounded: `zero_precision`, `target_bits`, `rounding`, `allowed_bits`
    (and `penalty`, which a target replaces).
    """
    own, config = plan.model.state_dict(), f"{PREFIX}config"
    if config not in state:
        raise ConfigError("this state has no plan in it: give that of a compressed model, before finalize")
    if int(state[f"{PREFIX}phase"]):
        raise ConfigError("the decisions of this state are rounded already: give one from before harden")
    if plan.is_hard:
        raise ConfigError("the plan is hardened already: make a new one with compress")
    if found := [key for key in plan._state.differences(state[config]) if not _is_rounding(key)]:
        raise ConfigError(f"the two plans differ in more than rounding: {', '.join(found)}; make them alike")
    # Which weights are zeros is found at `harden`; until then the flags are empty, whatever their shape.
    mine = {key: value for key, value in own.items() if key == config or key.endswith(".zero")}
    plan.model.load_state_dict({**state, **mine})


def _is_rounding(key: str) -> bool:
    kind, _, option = key.partition(".")
    return kind in ("precision", "activations") and option in _ROUNDING
