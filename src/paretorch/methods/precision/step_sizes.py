"""Which step each group gets: at the start, by what the loss feels, and at `harden`, exactly on target.

**Start.** Steps in proportion to the root mean square of each group, none above that of rounding by the largest magnitude with as many bits,
Δ = max|w| / (2^(p−1) − 1): rounding alone is then never worse than that. If chance has it otherwise in some layer, whose weights lie
on that grid already perhaps, the layer gets those steps.

**Sensitivity.** For small steps the loss grows by Σ H Δ²/24 over the weights, and a weight costs −log₂ Δ bits, so the best steps have
Δ² ∝ 1/H, H being the mean curvature of the group (reverse water-filling). Up to a factor that all weights have in common, and that
the target settles, H is the mean squared gradient. It is measured in the first steps, and averaged with that of the whole layer: few batches say little about
a single group, and rows that no batch has shown keep the step of their layer.

**On target.** One common factor to all steps makes the bits that the codes take, as counted by `paretorch.methods.precision.rate`, meet the
target.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from paretorch.core.attach.weights import RelaxedWeight
from paretorch.core.method import Part, Term
from paretorch.core.plan import Plan
from paretorch.core.relaxation import flatten
from paretorch.core.step.sample import some, stride_for
from paretorch.errors import ConfigError
from paretorch.methods.precision.rate import Tally, coded_bits, laplace_bits, laplace_slope, short_steps
from paretorch.methods.precision.stepped import TINY, Stepped
from paretorch.support.arithmetic import widened
from paretorch.support.sharded import whole

_MEASURED = 0.08  # share of the steps in which real steps learn what the loss feels
_COUNTS = 10  # times in a search that the bits of real steps are counted; in between a formula says how they change
_ROUNDS = 24
_SEEN = 2**14  # weights of a layer, until the target is near
_NEAR = 2e-4  # bits per weight that a target may be missed by
_FAR = 24.0  # log₂ of the largest common factor


def members_of(term: Term) -> list[Stepped]:
    """The relaxations with real steps."""
    return [r for r in term.relaxations if isinstance(r, Stepped)]


def largest(r: Stepped, weight: Tensor) -> Tensor:
    """The largest magnitude of each group."""
    sizes = weight.to(torch.float32).abs()
    places = torch.arange(math.prod(r.grouping.grid), device=sizes.device).view(r.grouping.grid)
    index = r.grouping.expand(places).expand(sizes.shape).flatten()
    found = torch.zeros(places.numel(), dtype=torch.float32, device=sizes.device).scatter_reduce_(
        0, index, sizes.flatten(), "amax"
    )
    return found.view(r.grouping.grid)


def plain_steps(r: Stepped, weight: Tensor, bits: float) -> Tensor:
    """The steps of rounding by the largest magnitude: max|w| / (2^(p−1) − 1), codes from −2^(p−1) + 1 to 2^(p−1) − 1."""
    top = largest(r, weight)
    return (top / (2.0 ** (bits - 1.0) - 1.0)).clamp_min(TINY) if bits > 1.0 else torch.full_like(top, math.inf)


def count_bits(term: Term, steps: Sequence[Tensor], seen: int | None = None) -> Tensor:
    """Bits per weight, on average, if each group is rounded to its step; device operations only.

    Args:
        seen: Count about as many weights of each layer, evenly spread; None: all.
    """
    found = []
    for index, step in enumerate(steps):
        if seen is None:
            found.append(coded_bits(_tally(part, step[part.rows], 1) for part in term.parts(index)))
            continue
        part = term.whole(index)
        every = stride_for(part.latent.numel(), seen)
        share = part.latent.numel() / (-(-part.latent.numel() // every))
        found.append(coded_bits([_tally(part, step, every, _all_magnitudes(term, index))], share))
    return (torch.stack(found).sum() / term.weights).to(torch.float32)


def _tally(part: Part, step: Tensor, every: int, sizes: Tensor | None = None) -> Tally:
    """Count every so many of the codes of some weights; sizes: the mean magnitude of each group."""
    r, weight, kept = cast(Stepped, part.relaxation), part.latent, part.chain.survives()
    sizes = _magnitudes(r, weight) if sizes is None else sizes
    wide = some(r.grouping.expand(step), every, weight)
    own = some(weight, every, weight).to(torch.float32)
    levels = some(r.grouping.expand(torch.log2(sizes / step)), every, weight)
    return Tally.of(torch.round(own / wide), levels, None if kept is None else some(kept, every, weight))


def steps_of(term: Term) -> list[Tensor]:
    """Δ of each group, as it is now."""
    return [r.steps(r.grid(whole(r.decision))) for r in members_of(term)]


def goal_for(term: Term, target: float) -> Tensor:
    """The bits by the formula at which the codes would take the target: what both take now is known."""
    bits, _ = _formula(term)
    return bits / term.weights + (target - count_bits(term, steps_of(term)))


def _formula(term: Term) -> tuple[Tensor, Tensor]:
    """Bits of all weights that are kept, by the formula, and their change per doubling of the steps."""
    members, sizes = members_of(term), []
    for index, r in enumerate(members):
        sizes.append(r.sizes() if len(term.chains[index].relaxations()) == 1 else _by_rows(term, index, _counted))
    ratio, count = _ratios(members), flatten(sizes)
    return (laplace_bits(ratio) * count).sum(), (laplace_slope(ratio) * count).sum()


def _ratios(members: Sequence[Stepped]) -> Tensor:
    """The step of each group over the mean magnitude of its weights, of all layers, end to end."""
    if members[0].hard:
        steps = flatten([r.step_size for r in members])
    else:
        s = flatten([r.grid(whole(r.decision)) for r in members])
        steps = 2.0 * flatten([r.base for r in members]) * torch.sigmoid(s)
    return steps / flatten([r.size for r in members]).clamp_min(TINY)


def _counted(part: Part) -> Tensor:
    """How many weights of each group other methods keep."""
    r, kept = cast(Stepped, part.relaxation), part.chain.survives()
    return r.sizes() if kept is None else r.grouping.reduce(kept.expand(r.grouping.shape))


def _magnitudes(r: Stepped, weight: Tensor) -> Tensor:
    return (r.grouping.reduce(weight.to(torch.float32).abs()) / r.grouping.sizes).clamp_min(TINY)


def _all_magnitudes(term: Term, index: int) -> Tensor:
    return _by_rows(term, index, lambda part: _magnitudes(cast(Stepped, part.relaxation), part.latent))


def _by_rows(term: Term, index: int, function: Callable[[Part], Tensor]) -> Tensor:
    """One value per group of a weight, from those of its parts."""
    parts, r = term.parts(index), term.relaxations[index]
    if len(parts) == 1:
        return function(parts[0])
    found = torch.empty(r.grouping.grid, dtype=torch.float32, device=r.decision.device)
    for part in parts:
        found[part.rows] = function(part)
    return found


def start(term: Term, target: float, alone: bool) -> None:
    """The first steps of all groups, at the target from the beginning. alone: no other method drops some of the weights."""
    members = members_of(term)
    spread, most = [], []
    for index, r in enumerate(members):
        r.size.copy_(_all_magnitudes(term, index))
        spread.append(_by_rows(term, index, _mean_square).sqrt().clamp_min(TINY))
        plain = _by_rows(term, index, lambda part: plain_steps(cast(Stepped, part.relaxation), part.latent, target))
        most.append(plain if alone else torch.full_like(plain, math.inf))

    def steps(factor: float) -> list[Tensor]:
        return [
            short_steps(torch.minimum(one * factor, top), r.grouping.sizes)
            for one, top, r in zip(spread, most, members, strict=True)
        ]

    for r, step in zip(members, _meet(term, steps, target), strict=True):
        r.base.copy_(step)


def _mean_square(part: Part) -> Tensor:
    grouping = part.relaxation.grouping
    return grouping.reduce(part.latent.to(torch.float32).square()) / grouping.sizes


def _meet(term: Term, steps: Callable[[float], list[Tensor]], target: float) -> list[Tensor]:
    """The steps, by a common factor, whose codes take `target` bits per weight, as nearly as can be from below."""
    start = _bisect(lambda guess: float(count_bits(term, steps(2.0**guess), _SEEN)) - target, 0.0, _FAR)
    exact = _bisect(lambda guess: float(count_bits(term, steps(2.0**guess))) - target, start, 2.0)
    return steps(2.0**exact)


def _bisect(off: Callable[[float], float], guess: float, reach: float) -> float:
    """Where a function that falls by about 1 for each unit comes below 0, within `reach` of the guess."""
    low, high = guess - reach, guess + reach  # above 0 at `low`
    for number in range(_ROUNDS):
        found = off(guess)
        low, high = (low, guess) if found <= 0.0 else (guess, high)
        if -_NEAR < found <= 0.0 or high - low < 1e-6:
            break
        near = guess + found + (0.5 * _NEAR if found > 0 else -0.5 * _NEAR)
        guess = near if low < near < high and number < _ROUNDS // 2 else (low + high) / 2
    return high


def start_search(term: Term, target: float) -> None:
    """Set the first steps, and the bits by the formula that go with them, which the search keeps to."""
    for r in members_of(term):
        r.measured = _spreads(term.steps)[-1]
    start(term, target, alone=all(len(chain.relaxations()) == 1 for chain in term.chains))
    term.set_scalar("integral", goal_for(term, target))


def _spreads(steps: int) -> list[int]:
    """The steps after which step sizes follow what was measured: the first share, and each doubling up to half of the search."""
    first = max(1, round(_MEASURED * steps))
    return [first * 2**i for i in range(steps.bit_length()) if i == 0 or first * 2**i <= steps // 2]


def is_measured(term: Term, count: int) -> bool:
    """Whether step sizes follow what was measured, or their bits are counted, at this step."""
    return count % max(1, term.steps // _COUNTS) == 0 or count in _spreads(term.steps)


def steer_steps(term: Term, step: Tensor, target: float, corrects: bool) -> None:
    """Keep the search on target. corrects: whether the common factor is due at this step."""
    spreads = _spreads(term.steps)
    if term.count is None or term.count in spreads:
        spread_by_sensitivity(term, step, spreads)
    if term.count is not None and is_measured(term, term.count):
        term.set_scalar("integral", goal_for(term, target))
    if corrects:
        correct_steps(term, term.scalar("integral"))


def settle(term: Term, target: float, untrained: bool) -> float:
    """Write the final steps, on target, but for those that were given.

    Returns by how much log₂ of the steps changes, on average over the weights.
    """
    members = members_of(term)
    given = [bool(r.given) for r in members]
    now = [r.real_steps(r.grid(whole(r.decision))) for r in members]

    def short(factor: float) -> list[Tensor]:
        return [
            one if kept else short_steps(one * factor, r.grouping.sizes)
            for one, r, kept in zip(now, members, given, strict=True)
        ]

    steps = now if all(given) else _meet(term, short, target)
    if untrained:
        steps = [step if given[i] else _no_worse(term, i, step, target) for i, step in enumerate(steps)]
    moved = 0.0
    for r, step, before in zip(members, steps, now, strict=True):
        r.step_size.copy_(step)
        moved += float((torch.log2(step / before).abs() * r.grouping.sizes).sum())
    return moved / term.weights


def _no_worse(term: Term, index: int, step: Tensor, bits: float) -> Tensor:
    """The steps of one layer, or those of rounding by the largest magnitude if their squared error is less."""
    plain = _by_rows(term, index, lambda part: plain_steps(cast(Stepped, part.relaxation), part.latent, bits))

    def error(steps: Tensor) -> float:
        found = 0.0
        for part in term.parts(index):
            wide, weight = part.relaxation.grouping.expand(steps[part.rows]), part.latent.to(torch.float32)
            found += float(widened(weight - torch.round(weight / wide) * wide).square().sum())
        return found

    return plain if bits > 1.0 and error(plain) < error(step) else step


@torch.no_grad()
def spread_by_sensitivity(term: Term, step: Tensor, when: Sequence[int]) -> None:
    """At these steps of the plan: Δ² ∝ 1/H, the average (of log₂ Δ, over the weights) as before; device operations only."""
    members = members_of(term)
    due = torch.stack([step == one for one in when]).any()
    moves, total = [], torch.zeros((), dtype=torch.float32, device=step.device)
    for r in members:
        mean = (r.heat * r.grouping.sizes).sum() / math.prod(r.grouping.shape)
        own = torch.where(r.heat > 0.0, r.heat, mean)
        wanted = -0.5 * torch.log2((0.5 * (own + mean)).clamp_min(TINY))
        move = torch.where(mean > 0.0, wanted - torch.log2(r.base), 0.0)
        moves.append((move, mean > 0.0))
        total = total + (move * r.grouping.sizes).sum()
    seen = torch.stack([has * math.prod(r.grouping.shape) for r, (_, has) in zip(members, moves, strict=True)]).sum()
    common = total / seen.clamp_min(1.0)
    for r, (move, has) in zip(members, moves, strict=True):
        r.base.mul_(torch.exp2(torch.where(due & has & ~r.given, move - common, 0.0)))


@torch.no_grad()
def update_price(term: Term) -> None:
    """The price of a bit that the gradients of all steps together are worth: −Σ ∂L/∂s over Σ ∂bits/∂s, averaged over some steps.

    A group whose step the loss feels more than that gets a smaller one, and the others pay for it.
    """
    members = [r for r in members_of(term) if r.decision.grad is not None]
    if not members:
        return  # between steps, for logging
    gradients = [whole(r.decision.grad) for r in members if r.decision.grad is not None]
    slopes = flatten(Stepped.slopes_all(members, [r.grid(whole(r.decision)) for r in members]))
    slopes = slopes * flatten([r.sizes() for r in members])
    worth = flatten(gradients).sum()
    now = (worth / -slopes.sum().clamp_max(-TINY)).clamp_min(0.0)
    before = term.scalar("price")
    term.set_scalar("price", torch.where(before > 0.0, 0.9 * before + 0.1 * now, now))


@torch.no_grad()
def correct_steps(term: Term, goal: Tensor) -> None:
    """A common factor to all steps, so that the bits by the formula stay at their goal; device operations only."""
    members = members_of(term)
    torch._foreach_copy_(
        [r.size for r in members],
        [_all_magnitudes(term, index) for index in range(len(members))],
    )
    bits, slope = _formula(term)
    move = torch.exp2(((bits - goal * term.weights) / -slope.clamp_max(-TINY)).clamp(-1.0, 1.0))
    factors = torch.where(torch.stack([r.given for r in members]), 1.0, move)
    torch._foreach_mul_([r.base for r in members], list(factors.unbind()))


def start_from_steps(plan: Plan, steps: Mapping[str, Tensor]) -> None:
    """Let a fresh plan of `SMOL(scale="real")` start from given steps, such as those of a post-training method.

    Training and `harden` then keep to them: W = Δ round(w/Δ), whatever bits that takes. Layers that are not named have the steps that
    they would have without.

    Args:
        plan: From `compress`, before its first step.
        steps: By the name of the weight: a positive number, or a tensor in the shape of the layer's groups, such as (rows, 1) for
            `group="channel"` of a linear layer or (rows, columns / 32) for `group=(1, 32)`.
    """
    found = {
        name: r
        for weight in plan.model.modules()
        if isinstance(weight, RelaxedWeight)
        for r in weight.relaxations()
        if isinstance(r, Stepped)
        for name in weight.names
    }
    if not found:
        raise ConfigError('the plan has no real steps: give compress a SMOL(scale="real", ...)')
    for name, step in steps.items():
        if name not in found:
            raise ConfigError(f"steps[{name!r}] is no weight of the plan: it has {', '.join(sorted(found))}")
        grid = found[name].grouping.grid
        values = torch.as_tensor(step, dtype=torch.float32)
        if values.numel() not in (1, math.prod(grid)) or not bool((values.isfinite() & (values > 0)).all()):
            raise ConfigError(
                f"steps[{name!r}]: give one positive number, or {tuple(grid)} of them, not {tuple(values.shape)}"
            )
    for name, step in steps.items():
        r = found[name]
        values = torch.as_tensor(step, dtype=torch.float32, device=r.base.device)
        r.base.copy_(values.expand(r.base.shape) if values.numel() == 1 else values.reshape(r.base.shape))
        r.given.fill_(True)
    plan.refresh()
