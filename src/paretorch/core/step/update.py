"""What a plan does to decisions and weights at its steps and when it rounds, beside the optimizers themselves."""

import torch
from torch import Tensor

from paretorch.core.attach.sites import Site
from paretorch.core.attach.weights import original
from paretorch.core.method import Term
from paretorch.core.relaxation import Chain, Relaxation
from paretorch.errors import DivergenceError, UndecidedWarning
from paretorch.support.sharded import local, shard_like, whole, write
from paretorch.support.warn import warn

_FELT = 0.01


def check_finite(term: Term, step: Tensor, scaler: torch.amp.GradScaler | None) -> None:
    """On a CPU, where it costs no synchronisation, stop at the first gradient that is not finite."""
    if step.is_cuda or scaler is not None:
        return
    for relaxation, site in zip(term.relaxations, term.sites, strict=True):
        gradient = relaxation.decision.grad
        if gradient is not None and not bool(torch.isfinite(local(gradient).sum())):
            raise DivergenceError(
                f"step {int(step)}: the gradient that reaches {site.name} is not finite: check the loss for NaN, or lower the learning rate"
            )


def require_finite(sites: list[Site], terms: list[Term]) -> None:
    """Refuse weights, decisions and learned ranges that cannot be rounded, before any of them is."""
    found = [(f"{site.name} has values", original(site)) for site in sites]
    for term in terms:
        for relaxation, site in zip(term.relaxations, term.sites, strict=True):
            found.append((f"{site.name} has {relaxation.room} decisions", relaxation.decision))
            found += [(f"{site.name} has learned ranges", parameter) for parameter, _ in relaxation.trained()]
    for what, tensor in found:
        if not bool(whole(tensor).isfinite().all()):
            raise DivergenceError(
                f"{what} that are not finite: go back to a checkpoint from before, and lower the learning rate"
            )


def warn_undecided(term: Term, step: Tensor) -> None:
    """Say how much rounding will change, where that is not next to nothing."""
    undecided = term.method.undecided(term)
    if undecided is not None and float(undecided) > _FELT:
        warn(
            f"harden at step {int(step)} of {term.steps}: the masks of {type(term.method).__name__} are on average "
            f"{float(undecided):.3f} away from 0 or 1, so rounding will be felt; train on until the temperature is high, "
            "or look first with plan.hardened()",
            UndecidedWarning,
        )


def add_price(term: Term, terms: list[Term], gradients: list[Tensor]) -> None:
    """gradients += d(λ_keep Σ keep + λ_bits Σ keep·bits)/ds, in closed form, one gradient a relaxation.

    A steered price is a control signal and touches its own decisions only.
    """
    prices = {t.method.room: t.method.price(t) for t in terms if t is term or not t.method.is_steered}
    for relaxation, chain, gradient in zip(term.relaxations, term.chains, gradients, strict=True):
        slope = _slope(relaxation, chain, prices)
        if slope is not None:
            gradient.add_(shard_like(slope.reshape(gradient.shape), gradient))
    slopes = term.method.reward_slopes(term)
    if slopes is not None:
        for slope, gradient in zip(slopes, gradients, strict=True):
            gradient.add_(shard_like(slope, gradient))


def gradients_of(term: Term) -> list[Tensor]:
    """The gradient of each relaxation's decision; zeros where no loss has reached it."""
    for decision in term.decisions():
        if decision.grad is None:
            decision.grad = torch.zeros_like(decision)
    return [r.decision.grad for r in term.relaxations if r.decision.grad is not None]


def advance(terms: list[Term], step: Tensor) -> None:
    """One step on: schedules follow the counter, targets are steered to."""
    step.add_(1)
    for term in terms:
        term.method.schedule(term, step)
        term.method.steer(term, step)


def price_now(terms: list[Term]) -> Tensor:
    """λ_keep Σ keep + λ_bits Σ keep·bits."""
    prices = []
    for term in terms:
        reward = term.method.reward(term)
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
    rate = prices.get(relaxation.room)
    if relaxation.keep(s) is None:
        kept = chain.keep(but=relaxation)
        return rate if rate is None or kept is None else rate * kept
    for other in chain.relaxations():
        bits, price = other.bits(other.grid(whole(other.decision))), prices.get(other.room)
        if bits is not None and price is not None:
            rate = price * bits if rate is None else rate + price * bits
    return rate


def clip_weights(chains: list[Chain], weights: list[Tensor]) -> None:
    """Keep every weight within the limits of its relaxations, in place."""
    for chain, weight in zip(chains, weights, strict=True):
        for relaxation in chain.relaxations():
            bound = relaxation.limit(relaxation.grid(whole(relaxation.decision)))
            if bound is not None:
                bound = local(shard_like(bound.expand(weight.shape).to(weight.dtype), weight))
                local(weight).clamp_(-bound, bound)


def forget_dropped(sites: list[Site], chains: list[Chain], optimizer: torch.optim.Optimizer) -> None:
    """Weights that are dropped become zero, and the optimizer's state of them.

    Their gradient is zero from here on; at zero, decay gives them none either, and AvaGrad's norm leaves them out.
    """
    for site, chain in zip(sites, chains, strict=True):
        kept = chain.keep()
        if kept is None:
            continue
        weight = original(site)
        write(weight, whole(weight) * (kept > 0))
        for value in optimizer.state.get(weight, {}).values():
            if isinstance(value, Tensor) and value.shape == weight.shape:
                write(value, whole(value) * (kept > 0))
