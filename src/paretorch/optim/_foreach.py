"""The update in torch operations, over lists of flat tensors of one dtype and device.

Every list is short-lived and, on a CPU, small enough for the second level cache, so that the chain of operations reads
and writes main memory once. On accelerators the lists hold whole tensors and each line is one multi-tensor launch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paretorch.optim._rule import Hyper, Scalar

Tensors = list[Tensor]


def update(ps: Tensors, gs: Tensors, ms: Tensors, vs: Tensors, hyper: Hyper, rms: Scalar, live: bool) -> None:
    """One step, in place. `live` promises that every v is positive, which spares the look for fresh coordinates."""
    rule = hyper.rule
    gs = effective_gradients(ps, gs, hyper)
    if rule.decoupled and hyper.weight_decay:
        torch._foreach_mul_(ps, 1 - hyper.lr * hyper.weight_decay)
    torch._foreach_lerp_(ms, gs, 1 - hyper.beta1)
    roots = list(torch._foreach_sqrt(vs)) if rule.delayed else []
    torch._foreach_mul_(vs, hyper.beta2)
    torch._foreach_addcmul_(vs, gs, gs, value=1 - hyper.beta2)
    if not rule.delayed:
        roots = list(torch._foreach_sqrt(vs))
    elif not live:
        # A coordinate without history takes its own first v (see the first-step rule of AvaGrad).
        roots = [torch.where(root == 0, v.sqrt(), root) for root, v in zip(roots, vs, strict=True)]
    torch._foreach_add_(roots, hyper.eps)
    _descend(ps, ms, roots, hyper.lr / rms if rule.normalised else hyper.lr)


def effective_gradients(ps: Tensors, gs: Tensors, hyper: Hyper) -> Tensors:
    """±g, plus λw where the decay is not decoupled. The gradients themselves are left as they are."""
    if hyper.maximize:
        gs = list(torch._foreach_neg(gs))
    if hyper.weight_decay and not hyper.rule.decoupled:
        gs = list(torch._foreach_add(gs, ps, alpha=hyper.weight_decay))
    return gs


def first_moments(ps: Tensors, gs: Tensors, hyper: Hyper) -> Tensors:
    """v₁ = (1 − β₂) g₁², which stands in for v₀ = 0 in a network without history."""
    squares = torch._foreach_pow(effective_gradients(ps, gs, hyper), 2)
    torch._foreach_mul_(squares, 1 - hyper.beta2)
    return list(squares)


def eta_sums(vs: Tensors, hyper: Hyper) -> tuple[Tensor, Tensor]:
    """Per tensor Σ η² over the coordinates with v > 0, and how many these are, both fp64: shapes (n,), (n,)."""
    counts = [torch.count_nonzero(v) for v in vs]
    etas = torch._foreach_sqrt(vs)
    torch._foreach_add_(etas, hyper.eps)
    torch._foreach_reciprocal_(etas)
    for eta, v, count in zip(etas, vs, counts, strict=True):
        if v.device.type != "cpu" or int(count) != v.numel():
            eta.mul_(v > 0)
    kappa = hyper.damping
    if kappa != 1:
        torch._foreach_mul_(etas, kappa)
    sums = torch.stack(torch._foreach_norm(etas)).double().square_().div_(kappa**2)
    return sums, torch.stack(counts).double()


def _descend(ps: Tensors, ms: Tensors, denominators: Tensors, rate: Scalar) -> None:
    if isinstance(rate, Tensor):
        updates = torch._foreach_div(ms, denominators)
        torch._foreach_mul_(updates, rate)
        torch._foreach_sub_(ps, updates)
    else:
        torch._foreach_addcdiv_(ps, ms, denominators, value=-rate)
