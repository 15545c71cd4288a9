"""What `Plan.step` does to decisions and weights, beside the optimizers themselves."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from paretorch.core.attach import original
from paretorch.core.method import Term
from paretorch.core.relaxation import Chain, Relaxation
from paretorch.core.sites import Site
from paretorch.core.tensors import local, whole
from paretorch.errors import DivergenceError


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


def add_price(term: Term, terms: list[Term]) -> None:
    """s.grad += d(λ_keep Σ keep + λ_bits Σ keep·bits)/ds, in closed form; a steered price touches its own decisions only."""
    prices = {
        other.method.room: other.method.price(other) for other in terms if other is term or not other.method.is_steered
    }
    if all(price is None for price in prices.values()):
        return
    for relaxation, chain in zip(term.relaxations, term.chains, strict=True):
        slope = _slope(relaxation, chain, prices)
        if slope is None:
            continue
        decision = relaxation.decision
        slope = _like(slope.reshape(decision.shape), decision)
        decision.grad = slope if decision.grad is None else decision.grad.add_(slope)


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
        rate = term.method.price(term)
        for relaxation, chain, site in zip(term.relaxations, term.chains, term.sites, strict=True):
            cost = relaxation.bits(relaxation.grid(whole(relaxation.decision)))
            kept = chain.keep()
            for factor in (cost, kept):
                if rate is not None and factor is not None:
                    rate = rate * factor
            if rate is not None:
                prices.append(rate.expand(site.weight.shape).sum())
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


def _like(value: Tensor, decision: Tensor) -> Tensor:
    if isinstance(decision, DTensor):
        return distribute_tensor(value, decision.device_mesh, decision.placements, src_data_rank=None)
    return value


def clip_weights(sites: list[Site], chains: list[Chain]) -> None:
    """Keep every weight within the limits of its relaxations, in place."""
    with torch.no_grad():
        for site, chain in zip(sites, chains, strict=True):
            for relaxation in chain.relaxations():
                bound = relaxation.limit(relaxation.grid(whole(relaxation.decision)))
                if bound is not None:
                    weight = original(site)
                    bound = _like(bound.expand(weight.shape).to(weight.dtype), weight)
                    local(weight).clamp_(-local(bound), local(bound))
