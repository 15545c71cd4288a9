"""Whole bits from searched precisions: s stands for 1 + log₂(1 + e⁻ˢ) bits, which one common offset brings to the target.

Zeros: a weight of p bits is nearer to zero than to its grid if |w| ≤ 2^k 2^(−p). While searching 2^(1−p) is σ(s), so the
condition is |w| ≤ 2^k σ(s)/2: within half of its noise. Such weights will count no bits. If they were counted as one at least, a
target below that would be out of reach, and the price would rise without end.

Two networks from one search ("Zero Precision Allocation", section 5.3) are the same s, rounded in two ways:

    plan = compress(model, SMOL(penalty=1e-6), steps=N)                              # … search …
    twin = compress(build(), SMOL(penalty=1e-6, zero_precision=True), steps=N)
    take_search(twin, model.state_dict())
    plan.harden(optimizer); twin.harden()                                            # fine-tune either
"""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol, Self, cast

import torch
from torch import Tensor

from paretorch.core.groups import Grouping
from paretorch.core.method import Term
from paretorch.core.plan import Plan
from paretorch.core.relaxation import PREFIX, Relaxation
from paretorch.core.rounding import raise_levels
from paretorch.core.step.sample import some, stride_for
from paretorch.errors import ConfigError
from paretorch.methods.precision.grid import LOG2, MAX_BITS, level_above, power_of_two, real_bits, s_of_bits, whole_bits
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


_SEEN = 2**16  # weights of a layer


def are_found(term: Term) -> bool:
    """Whether some of these weights may get zero precision."""
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


def allocate(term: Term, members: Sequence[Leveled], budget: float | None) -> tuple[float, float]:
    """Write whole bits into the decisions: as they stand (no budget), or raised or lowered together to `budget` bits.

    Of groups that are raised at the same offset, the first are, ties by index; the last of them where that is nearer to
    the budget than to do without. Returns the bits that they take, and the least that they could take.
    """
    index = {id(r): i for i, r in enumerate(members)}
    kept = [_kept(term, i, r) for i, r in enumerate(members)]
    decisions = [(decision, [index[id(r)] for r in group]) for decision, group, _ in term.groups()]
    real = [real_bits(whole(decision)) for decision, _ in decisions]

    def levels(offset: float) -> list[Tensor]:
        return [members[who[0]].raised(one, offset) for one, (_, who) in zip(real, decisions, strict=True)]

    def counts(p: list[Tensor]) -> list[Tensor]:
        """How many weights pay for each entry."""
        found = []
        for one, (_, who) in zip(p, decisions, strict=True):
            found.append(torch.stack([_paying(term, i, members[i], kept[i], one) for i in who]).sum(0).view(one.shape))
        return found

    def cost(p: list[Tensor]) -> float:
        return sum(float((n * one).sum()) for n, one in zip(counts(p), p, strict=True))

    chosen = levels(0.0)
    if budget is not None:
        most = max(MAX_BITS, *(math.ceil(float(one.max())) for one in real))  # a short search with a high rate goes far
        low, high = raise_levels(lambda offset: cost(levels(offset)), budget, -most, MAX_BITS)
        chosen = levels(low)
        above = levels(high)
        extra = [
            (b * n - a * m).flatten() for a, m, b, n in zip(chosen, counts(chosen), above, counts(above), strict=True)
        ]
        _fill(chosen, above, torch.cat(extra), budget - cost(chosen))
    for p, (decision, who) in zip(chosen, decisions, strict=True):
        for i in who:
            if members[i].zero_precision:
                members[i].find_zeros(whole(term.latent(i)), members[i].grid(p))
        write(decision, s_of_bits(p.double() + 0.25))  # read back as p by either rounding
    return cost(chosen), least_bits(term, members)


def least_bits(term: Term, members: Sequence[Leveled]) -> float:
    """The bits that they would take with the lowest precision everywhere."""
    return sum(_least(term, i, r) for i, r in enumerate(members))


def make_room(term: Term, members: Sequence[Leveled], budget: float) -> None:
    """Zero precision, and scales that follow the weights: larger ones, until few enough weights keep a bit.

    One layer after another, each time where most is to be saved: were all to grow at once, the least that they could take would
    fall by half, and a target in between be missed by as much.
    """
    least = [_least(term, i, r) for i, r in enumerate(members)]
    growth = {i: _MOST_GROWTH for i, r in enumerate(members) if r.lead is not None and r.zero_precision}
    while sum(least) > budget and any(growth.values()):
        first = max((i for i, left in growth.items() if left), key=least.__getitem__)
        members[first].power.add_(1)
        growth[first] -= 1
        least[first] = _least(term, first, members[first])


def _least(term: Term, index: int, r: Leveled) -> float:
    lowest = min(r.allowed, default=1)
    p = torch.full(r.grouping.grid, lowest, dtype=torch.int32, device=r.decision.device)
    return lowest * float(_paying(term, index, r, _kept(term, index, r), p).sum())


def _kept(term: Term, index: int, r: Leveled) -> Tensor:
    kept = term.chains[index].survives(but=r)
    shape = r.grouping.shape
    return torch.ones(shape, dtype=torch.float32, device=r.decision.device) if kept is None else kept.expand(shape)


def _paying(term: Term, index: int, r: Leveled, kept: Tensor, p: Tensor) -> Tensor:
    if r.zero_precision:
        weight = whole(term.latent(index))
        kept = kept * ~r.is_zero(weight, r.grouping.expand(r.grid(p)))
    return r.grouping.reduce(kept).double().reshape(-1)


def _fill(chosen: list[Tensor], above: list[Tensor], extra: Tensor, left: float) -> None:
    """Raise entries to the next level in order of index until what is `left` is spent as nearly as can be, in place.

    `extra` is what each costs. The last one may cost more than is left, by less than it would leave unspent.
    """
    spent = torch.cumsum(extra, 0)
    taken = spent <= left + 1e-9
    count = int(taken.sum())
    if count < len(spent):
        without = left - (float(spent[count - 1]) if count else 0.0)
        taken[count] = float(spent[count]) - left < without
    for a, b, take in zip(chosen, above, taken.split([a.numel() for a in chosen]), strict=True):
        a.copy_(torch.where(take.view(a.shape), b, a))


_ROUNDING = frozenset({"zero_precision", "target_bits", "penalty", "rounding", "allowed_bits"})


def take_search(plan: Plan, state: Mapping[str, Tensor]) -> None:
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
    room, _, option = key.partition(".")
    return room in ("precision", "activations") and option in _ROUNDING
