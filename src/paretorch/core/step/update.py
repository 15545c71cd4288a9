"""What a plan does to decisions and weights at its steps and when it rounds, beside the optimizers themselves."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paretorch.core.attach.fused import FusedBatch
from paretorch.core.attach.weights import Batch, RelaxedWeight
from paretorch.core.method import Shares, Steered, Term
from paretorch.core.relaxation import Chain, Relaxation, unflatten
from paretorch.core.step.engine import Engine, laid_like
from paretorch.errors import DivergenceError, UndecidedWarning, warn
from paretorch.support.arithmetic import all_finite
from paretorch.support.sharded import is_sharded, local, shard_like, whole, write

_MIN_UNDECIDED = 0.01


def check_finite(
    term: Term, decisions: Sequence[nn.Parameter], step: Tensor, scaler: torch.amp.GradScaler | None
) -> None:
    """On a CPU, where it costs no synchronisation, stop at the first gradient that is not finite."""
    if step.is_cuda or scaler is not None:
        return
    found = [local(one.grad) for one in decisions if one.grad is not None]
    if not found or bool(torch.isfinite(torch.stack(torch._foreach_norm(found, 1))).all()):
        return
    for relaxation, site in zip(term.relaxations, term.sites, strict=True):
        gradient = relaxation.decision.grad
        if gradient is not None and not bool(torch.isfinite(local(gradient).sum())):
            raise DivergenceError(
                f"step {int(step)}: the gradient that reaches {site.name} is not finite: check the loss for NaN, or lower the learning rate; if a GradScaler scales the loss, "
                "call plan.step(scaler)"
            )


def require_finite(weights: list[RelaxedWeight], terms: list[Term]) -> None:
    """Refuse weights, decisions and learned ranges that cannot be rounded, before any of them is."""
    found: list[tuple[str, Tensor]] = [(f"{weight.name} has values", weight.latent) for weight in weights]
    for term in terms:
        for relaxation, site in zip(term.relaxations, term.sites, strict=True):
            found.append((f"{site.name} has {relaxation.kind} decisions", relaxation.decision))
            found += [(f"{site.name} has learned ranges", parameter) for parameter, _ in relaxation.trained()]
    for what, tensor in found:
        if not all_finite(whole(tensor)):
            raise DivergenceError(
                f"{what} that are not finite: go back to a checkpoint from before, and lower the learning rate"
            )


def warn_undecided(term: Term, step: Tensor) -> None:
    """Say how much rounding will change, where that is not next to nothing."""
    undecided = term.method.undecided(term) if isinstance(term.method, Steered) else None
    if undecided is not None and float(undecided) > _MIN_UNDECIDED:
        warn(
            f"harden at step {int(step)} of {term.steps}: the masks of {type(term.method).__name__} are on average "
            f"{float(undecided):.3f} away from 0 or 1, so rounding will change the network; train on until the temperature is high, "
            "or look first with plan.hardened()",
            UndecidedWarning,
        )


def add_prices(trained: Sequence[tuple[Term, Sequence[nn.Parameter]]], terms: list[Term], engine: Engine) -> None:
    """Add d(λ_keep Σ keep + λ_bits Σ keep·bits)/ds to the gradients of the decisions, in closed form.

    A steered price is a control signal and touches its own decisions only. What a channel is worth is divided by the time that it takes, if
    that was measured and the method compares channels by it.

    Args:
        trained: the terms whose decisions are trained, with these.
        terms: all terms.
        engine: of the plan.
    """
    prices = {term.method.kind: term.method.price(term) for term in terms}
    steered = {term.method.kind for term in terms if isinstance(term.method, Steered) and term.method.is_steered}
    kinds = {term.method.kind for term, _ in trained}
    for decision in (decision for _, decisions in trained for decision in decisions):
        if decision.grad is None:
            decision.grad = torch.zeros_like(decision)
    for term, decisions in trained:
        _divide_by_time(term, decisions)
    if any(price is not None for price in prices.values()):
        for batch in engine.known_batches():
            # Decisions that rows share are few: whole, and what is asked of all of a weight's is known.
            is_large = all(r.grouping.is_single for own in batch.places for r in own)
            for part in batch.parts() if is_large else [batch]:
                _price_batch(part, kinds, prices, steered)
    for term, _ in trained:
        if not term.is_on_weights:
            _price_alone(term, prices, steered)
        slopes = term.method.reward_slopes(term) if isinstance(term.method, Shares) else None
        for relaxation, slope in zip(term.relaxations, slopes or (), strict=False):
            gradient = relaxation.decision.grad
            assert gradient is not None
            gradient.add_(shard_like(slope, gradient))


Prices = dict[str, Tensor | None]


def _divide_by_time(term: Term, decisions: Sequence[nn.Parameter]) -> None:
    times = term.time_prices
    for decision in decisions if times is not None else ():
        assert times is not None
        assert decision.grad is not None
        decision.grad.div_(shard_like(times, decision.grad))


def _price_batch(batch: Batch, kinds: set[str], prices: Prices, steered: set[str]) -> None:
    if batch.fused is not None and _price_fused(batch.fused, kinds, prices, steered, alone=len(batch.places) == 1):
        return
    members, own_grids = batch.places, batch.grids()
    places = range(len(members))
    keeps = [type(own[0]).keep_all(own, own_grids[place]) for place, own in enumerate(members)]
    for place, own in enumerate(members):
        kind = own[0].kind
        if kind not in kinds:
            continue
        others = [other for other in places if other != place]
        paid = {members[o][0].kind for o in others} - steered
        rate: Tensor | list[Tensor] | None = prices.get(kind)
        if keeps[place] is None:
            for other in others:
                if rate is not None and keeps[other] is not None:
                    rate = _times(rate, keeps[other])
        else:
            for other in others:
                price = prices.get(members[other][0].kind) if members[other][0].kind in paid else None
                bits = None if price is None else type(members[other][0]).bits_all(members[other], own_grids[other])
                if price is not None and bits is not None:
                    rate = _plus(rate, list(torch._foreach_mul(bits, price)))
        if rate is not None:
            slopes = type(own[0]).slopes_all(own, own_grids[place])
            _add_slopes(batch, place, rate, slopes)


def _price_fused(fused: FusedBatch, kinds: set[str], prices: Prices, steered: set[str], alone: bool) -> bool:
    """By a kernel, if bits alone have a price, and masks do not pay for them."""
    price = prices.get("precision")
    if price is None or "precision" not in kinds or not (alone or "precision" in steered):
        return False
    others = [other for kind, other in prices.items() if other is not None and kind != "precision"]
    return not others and fused.add_prices(price)


def _times(rate: Tensor | list[Tensor], factors: list[Tensor] | None) -> list[Tensor]:
    assert factors is not None
    return list(torch._foreach_mul(factors, rate))


def _plus(rate: Tensor | list[Tensor] | None, values: list[Tensor]) -> list[Tensor]:
    if rate is None:
        return values
    if isinstance(rate, Tensor):  # a multi-tensor addition of a scalar tensor waits for a GPU to know it
        return [value + rate for value in values]
    return list(torch._foreach_add(values, rate))


def _add_slopes(batch: Batch, place: int, rate: Tensor | list[Tensor], slopes: list[Tensor]) -> None:
    own: Sequence[Relaxation] = batch.places[place]
    if batch.is_flat:
        slopes = unflatten(torch._foreach_mul(slopes, rate)[0], batch.decisions[place])
    elif isinstance(rate, Tensor):
        slopes = list(torch._foreach_mul(slopes, rate))
        if any(isinstance(r.grouping.sizes, Tensor) or r.grouping.sizes != 1.0 for r in own):
            slopes = [slope * r.grouping.sizes for slope, r in zip(slopes, own, strict=True)]
    elif batch.is_sharded and batch.is_local:
        slopes = list(torch._foreach_mul(slopes, rate))
    else:
        reduced = [r.grouping.reduce(one.expand(r.grouping.shape)) for r, one in zip(own, rate, strict=True)]
        slopes = list(torch._foreach_mul(slopes, reduced))
    decisions = batch.decisions[place]
    gradients = batch.gradients(place)
    if batch.is_sharded or len({id(decision) for decision in decisions}) < len(decisions):  # a decision of many weights
        for gradient, slope, decision in zip(gradients, slopes, decisions, strict=True):
            gradient.add_(laid_like(slope, decision))
    else:
        if not batch.is_flat:
            slopes = [slope.reshape(one.shape) for one, slope in zip(gradients, slopes, strict=True)]
        torch._foreach_add_(gradients, slopes)


def _price_alone(term: Term, prices: Prices, steered: set[str]) -> None:
    """Of decisions that act on something else than weights, one by one."""
    paid = {kind: price for kind, price in prices.items() if kind == term.method.kind or kind not in steered}
    for relaxation, chain in zip(term.relaxations, term.chains, strict=True):
        slope, gradient = _slope(relaxation, chain, paid), relaxation.decision.grad
        if slope is not None and gradient is not None:
            gradient.add_(shard_like(slope.reshape(gradient.shape), gradient))


def advance(terms: list[Term], step: Tensor) -> None:
    """One step on: schedules follow the counter, targets are steered to."""
    step.add_(1)
    for term in terms:
        term.method.schedule(term, step)
        if isinstance(term.method, Steered):
            term.method.steer(term, step)


def price_now(terms: list[Term]) -> Tensor:
    """λ_keep Σ keep + λ_bits Σ keep·bits."""
    prices = []
    for term in terms:
        reward = term.method.reward(term) if isinstance(term.method, Shares) else None
        prices += [] if reward is None else [reward]
        rate = term.method.price(term)
        for relaxation, chain in zip(term.relaxations, term.chains, strict=True):
            cost = relaxation.bits(relaxation.grid(whole(relaxation.decision)))
            kept = chain.keep()
            for factor in (cost, kept):
                if rate is not None and factor is not None:
                    rate = rate * factor
            if rate is not None:
                prices.append(rate.expand(relaxation.grouping.shape).sum())
            rate = term.method.price(term)
    return torch.stack(prices).sum() if prices else torch.zeros(())


def _slope(relaxation: Relaxation, chain: Chain, prices: dict[str, Tensor | None]) -> Tensor | None:
    s = relaxation.grid(whole(relaxation.decision))
    rate = _rate(relaxation, s, chain, prices)
    if rate is None:
        return None
    grouping = relaxation.grouping
    weight = rate * grouping.sizes if rate.dim() == 0 else grouping.reduce(rate.expand(grouping.shape))
    return weight * relaxation.price_slope(s)


def _rate(relaxation: Relaxation, s: Tensor, chain: Chain, prices: dict[str, Tensor | None]) -> Tensor | None:
    """What one unit of this decision costs at each weight: a kept weight costs its bits, a bit counts if it is kept."""
    rate = prices.get(relaxation.kind)
    if relaxation.keep(s) is None:
        kept = chain.keep(but=relaxation)
        return rate if rate is None or kept is None else rate * kept
    for other in chain.relaxations():
        bits, price = other.bits(other.grid(whole(other.decision))), prices.get(other.kind)
        if bits is not None and price is not None:
            rate = price * bits if rate is None else rate + price * bits
    return rate


def clear_dropped_weights(weights: list[RelaxedWeight], optimizer: torch.optim.Optimizer) -> None:
    """Weights that are dropped become zero, and the optimizer's state of them.

    Their gradient is zero from here on; at zero, decay gives them none either, and AvaGrad's norm leaves them out.
    """
    for weight in weights:
        moments = [
            value
            for value in optimizer.state.get(weight.tensor, {}).values()
            if isinstance(value, Tensor) and value.shape == weight.latent.shape
        ]
        for rows, part in weight.parts():
            kept = part.keep()
            if kept is None:
                continue
            for value in (weight.latent, *moments):
                if is_sharded(value):
                    write(value, whole(value) * (kept > 0))
                else:
                    value.detach()[rows].mul_(kept > 0)
