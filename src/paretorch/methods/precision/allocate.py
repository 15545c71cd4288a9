"""From real precisions to whole bits: one common offset, so that the average is as near to the target as groups allow."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from paretorch.core.method import Term
from paretorch.core.rounding import raise_levels
from paretorch.methods.precision.grid import MAX_BITS, real_bits, s_of_bits
from paretorch.methods.precision.leveled import Leveled
from paretorch.support.sharded import whole, write

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
