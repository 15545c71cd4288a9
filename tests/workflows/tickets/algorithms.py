"""Algorithms 2, 3 and 4 of chapter 4 and Sequential CS, literally: autograd on the loss plus the price, plain SGD.

Put right where the thesis slips: the final β multiplies s, τ is a share of the remaining weights, ISS has σ(s) in its
price. θ holds all parameters; s and m belong to the masked weights.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from paretorch.core.step.noise import seed_for, uniform
from paretorch.training.tasks import derive_seed
from tests.workflows.tickets.points import MASKED, RECIPE, Points

Tensors = dict[str, Tensor]
T = RECIPE.epochs * Points.steps


@dataclass
class Found:
    """θ̂; and after each round m, s and θ."""

    theta_hat: Tensors
    masks: list[Tensors] = field(default_factory=list)
    s: list[Tensors] = field(default_factory=list)
    theta: list[Tensors] = field(default_factory=list)

    def add(self, m: Tensors, s: Tensors, theta: Tensors) -> None:
        self.masks.append({n: v.bool() for n, v in m.items()})
        self.s.append(copied(s))
        self.theta.append(copied(theta))


def copied(tensors: Tensors) -> Tensors:
    return {n: v.detach().clone().requires_grad_() for n, v in tensors.items()}


def descend(
    f: nn.Module,
    theta: Tensors,
    s: Tensors,
    mask: Callable[[int], Tensors],
    price: Callable[[int], Tensor | float],
    *,
    lr: float = RECIPE.optimizer.lr,
    lr_s: float = 0.1,
    momentum_s: float = 0.9,
    adam_s: bool = False,
    drops: tuple[float, ...] = (),
    after: Callable[[int], None] = lambda t: None,
) -> None:
    """For t = 1 to T, update θ and s by the gradient of L(f(mask ⊙ θ)) + price; drops: of the rate of s."""
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.SGD(list(theta.values()), lr=lr, momentum=RECIPE.optimizer.momentum)
    ]
    if s and adam_s:
        optimizers.append(torch.optim.Adam(list(s.values()), lr=lr_s))
    elif s:
        optimizers.append(torch.optim.SGD(list(s.values()), lr=lr_s, momentum=momentum_s))
    for t in range(1, T + 1):
        if drops:
            optimizers[-1].param_groups[0]["lr"] = lr_s * 0.1 ** sum(t - 1 >= drop * T for drop in drops)
        points, labels = Points().epoch((t - 1) // Points.steps)
        x, y = points[(t - 1) % Points.steps], labels[(t - 1) % Points.steps]
        m = mask(t)
        loss = F.cross_entropy(functional_call(f, {n: m[n] * w if n in m else w for n, w in theta.items()}, x), y)
        for optimizer in optimizers:
            optimizer.zero_grad()
        (loss + price(t)).backward()
        for optimizer in optimizers:
            optimizer.step()
        after(t)


def storing(found: Found, theta: Tensors, r: int, k: int) -> Callable[[int], None]:
    """If r = 1 and t = k: store θ̂ ← θ."""

    def after(t: int) -> None:
        if r == 1 and t == k:
            found.theta_hat = copied(theta)

    return after


def without_lowest(scores: Tensors, m: Tensors, rate: float) -> Tensors:
    """m without the share `rate` of its remaining entries, those with the lowest scores."""
    ranked = sorted((v, n, i) for n in scores for i, v in enumerate(scores[n].detach().flatten().tolist()))
    remaining = [one for one in ranked if m[one[1]].flatten()[one[2]]]
    gone = {(n, i) for _, n, i in remaining[: round(rate * len(remaining))]}
    left = [[m[n].flatten()[i] and (n, i) not in gone for i in range(m[n].numel())] for n in scores]
    return {n: torch.tensor(one).bool().view(m[n].shape) for n, one in zip(scores, left, strict=True)}


def algorithm_2(
    f: nn.Module,
    *,
    s_init: float,
    penalty: float,
    final: float,
    rounds: int,
    k: int,
    rewind: bool,
    lr: float = RECIPE.optimizer.lr,
    rate: float | None = None,
    rescale: bool = True,
    lr_s: float = 0.1,
    adam_s: bool = False,
    drops: tuple[float, ...] = (),
) -> Found:
    """CS; a `rate` makes it Sequential CS, lr = 0 a supermask; printed is rescale = False."""
    theta = copied(dict(f.named_parameters()))
    found = Found(copied(theta))
    s = copied({n: torch.full_like(theta[n], s_init) for n in MASKED})
    m = {n: torch.ones_like(theta[n]).bool() for n in MASKED}
    scale = 1 + torch.exp(torch.tensor(-s_init)) if rescale else torch.tensor(1.0)
    for r in range(1, rounds + 1):
        if r > 1 and rate is None:
            s = copied({n: torch.minimum(final * v, torch.tensor(s_init)) for n, v in s.items()})
        elif r > 1:
            s = copied({n: torch.where(m[n], s_init, -1e6) for n in s})
        if r > 1 and rewind:
            theta = copied(found.theta_hat)

        def soft(t: int, s: Tensors = s) -> Tensors:
            return {n: torch.sigmoid(final ** ((t - 1) / T) * v) for n, v in s.items()}

        def mask(t: int, soft: Callable[[int], Tensors] = soft) -> Tensors:
            return {n: scale * v for n, v in soft(t).items()}

        def price(t: int, soft: Callable[[int], Tensors] = soft) -> Tensor:
            return penalty * torch.stack([v.sum() for v in soft(t).values()]).sum()

        trained = {"lr_s": lr_s, "adam_s": adam_s, "drops": drops}
        descend(f, theta, s, mask, price, lr=lr, after=storing(found, theta, r, k), **trained)  # type: ignore[arg-type]
        m = {n: v >= 0 for n, v in s.items()} if rate is None else without_lowest(s, m, rate)
        found.add(m, s, theta)
    return found


def algorithm_3(
    f: nn.Module, *, pools: list[tuple[float, tuple[str, ...]]], rounds: int, k: int, rewind: bool
) -> Found:
    """IMP, or without rewinding IMP-C; `pools`: how much of which weights, compared with each other, goes a round."""
    theta = copied(dict(f.named_parameters()))
    found = Found(copied(theta))
    m = {n: torch.ones_like(theta[n]).bool() for n in MASKED}
    for r in range(1, rounds + 1):
        if r > 1 and rewind:
            theta = copied(found.theta_hat)
        now = {n: v.float() for n, v in m.items()}
        descend(f, theta, {}, lambda t, now=now: now, lambda t: 0.0, after=storing(found, theta, r, k))
        for rate, names in pools:
            m = {**m, **without_lowest({n: theta[n].abs() for n in names}, m, rate)}
        found.add(m, {}, theta)
    return found


def algorithm_4(
    f: nn.Module,
    *,
    s_init: float,
    penalty: float,
    lr_s: float,
    rounds: int,
    k: int,
    rewind: bool,
    lr: float = RECIPE.optimizer.lr,
) -> Found:
    """ISS, on the library's own random numbers; lr = 0 makes it a supermask."""
    theta = copied(dict(f.named_parameters()))
    found = Found(copied(theta))
    s = copied({n: torch.full_like(theta[n], s_init) for n in MASKED})
    for r in range(1, rounds + 1):
        if r > 1:
            s = copied({n: torch.where(v < s_init, -torch.inf, v) for n, v in s.items()})
        if r > 1 and rewind:
            theta = copied(found.theta_hat)

        def draw(number: int, s: Tensors = s, r: int = r) -> Tensors:
            u = {
                n: (uniform(v.shape, torch.tensor(number), seed_for(derive_seed(0, r), n)) + 1) / 2
                for n, v in s.items()
            }
            return {n: (u[n] > 1 - torch.sigmoid(v)).float() for n, v in s.items()}

        def mask(t: int, s: Tensors = s, draw: Callable[[int], Tensors] = draw) -> Tensors:
            return {n: m + torch.sigmoid(s[n]) - torch.sigmoid(s[n]).detach() for n, m in draw(t - 1).items()}

        def price(t: int, s: Tensors = s) -> Tensor:
            return penalty * torch.stack([torch.sigmoid(v).sum() for v in s.values()]).sum()

        descend(f, theta, s, mask, price, lr=lr, lr_s=lr_s, momentum_s=0.0, after=storing(found, theta, r, k))
        found.add(draw(-1), s, theta)
    return found


def retrained(f: nn.Module, theta_hat: Tensors, m: Tensors) -> tuple[Tensors, float]:
    """f(m ⊙ θ̂) after T steps with m fixed, and its accuracy."""
    theta, fixed = copied(theta_hat), {n: v.float() for n, v in m.items()}
    descend(f, theta, {}, lambda t: fixed, lambda t: 0.0)
    task = Points()
    logits = functional_call(f, {n: fixed[n] * w if n in fixed else w for n, w in theta.items()}, task.points)
    return theta, float((logits.argmax(1) == task.labels).float().mean())
