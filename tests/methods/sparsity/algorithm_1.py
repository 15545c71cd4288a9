"""Algorithm 1 of chapter 4, literally: autograd on the loss plus the price, plain SGD for θ and for s."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call

Gate = Callable[[Tensor, float], Tensor]
GATES: dict[str, Gate] = {
    "sigmoid": lambda s, beta: 1 / (1 + torch.exp(-beta * s)),
    "erf": lambda s, beta: (1 + torch.erf(beta * s)) / 2,
    "arctan": lambda s, beta: (1 + 2 / math.pi * torch.atan(beta * s)) / 2,
    "algebraic": lambda s, beta: (1 + s / (1 / beta + s.abs() ** 2) ** 0.5) / 2,
}


def continuous_sparsification(
    f: nn.Module,
    shapes: dict[str, tuple[int, ...]],
    loss: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    gate: str,
    s_init: float,
    penalty: float,
    final: float,
    steps: int,
) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """θ and s after each step. `shapes`: of each masked weight's s, which broadcasts to the weight."""
    b = GATES[gate]
    theta = {name: p.detach().clone().requires_grad_() for name, p in f.named_parameters()}
    s = {name: torch.full(shape, s_init, requires_grad=True) for name, shape in shapes.items()}
    train_theta = torch.optim.SGD(list(theta.values()), lr=0.05, momentum=0.9)
    train_s = torch.optim.SGD(list(s.values()), lr=0.1, momentum=0.9)
    scale = 1 / float(b(torch.tensor(s_init), 1.0))
    beta = 1.0
    for _ in range(steps):
        masks = {name: b(s[name], beta).expand(theta[name].shape) for name in s}
        weights = {name: scale * masks[name] * w if name in s else w for name, w in theta.items()}
        total = loss(functional_call(f, weights, x)) + penalty * sum(m.sum() for m in masks.values())
        for optimizer in (train_theta, train_s):
            optimizer.zero_grad()
        total.backward()
        train_theta.step()
        train_s.step()
        beta *= final ** (1 / steps)
        yield theta, s


def algorithm_1(
    f: nn.Module,
    masked: tuple[str, ...],
    loss: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    s_init: float,
    penalty: float,
    final: float,
    steps: int,
    lr: float,
    drops: tuple[float, ...],
) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Nothing but what is printed: W = θ ⊙ σ(βs), and one SGD for θ and s; its rate falls to a tenth at each drop."""
    theta = {name: p.detach().clone().requires_grad_() for name, p in f.named_parameters()}
    s = {name: torch.full_like(theta[name], s_init, requires_grad=True) for name in masked}
    train = torch.optim.SGD([*theta.values(), *s.values()], lr=lr, momentum=0.9)
    beta = 1.0
    for t in range(steps):
        train.param_groups[0]["lr"] = lr * 0.1 ** sum(t >= drop * steps for drop in drops)
        masks = {name: 1 / (1 + torch.exp(-beta * s[name])) for name in s}
        weights = {name: masks[name] * w if name in s else w for name, w in theta.items()}
        total = loss(functional_call(f, weights, x)) + penalty * sum(m.sum() for m in masks.values())
        train.zero_grad()
        total.backward()
        train.step()
        beta *= final ** (1 / steps)
        yield theta, s
