"""The update as multi-tensor operations over whole tensors: on accelerators each line is one launch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from paretorch.optim._bucket import Bucket, Gradients
from paretorch.optim._leaf import Leaf
from paretorch.optim._norm import root_mean_square
from paretorch.optim._rule import Hyper, Scalar

Tensors = list[Tensor]
Roots = tuple[Tensor, ...] | Tensors


class ForeachBucket(Bucket):
    """All leaves at once, or (`single`) one after the other, which needs less memory. The host waits for nothing."""

    def __init__(self, leaves: list[Leaf], seed: int, single: bool) -> None:
        super().__init__(leaves, seed)
        everything = range(len(leaves))
        self._batches = [[i] for i in everything] if single else [list(everything)]
        zero = torch.zeros(2, dtype=torch.float64, device=self.device)
        self._parts = [zero] * len(leaves)

    def stats(self) -> Tensor:
        return torch.stack(self._parts).sum(0)

    def preview(self, grads: Gradients, hyper: Hyper) -> Tensor:
        total = torch.zeros(2, dtype=torch.float64, device=self.device)
        for batch, gs in self._present(grads):
            ps = [self._up(self.leaves[i].p) for i in batch]
            squares = list(torch._foreach_pow(_effective(ps, gs, hyper), 2))
            torch._foreach_mul_(squares, 1 - hyper.beta2)
            total += _eta_sums(squares, hyper).sum(0)
        return total

    def _measure(self, hyper: Hyper) -> None:
        for batch in self._batches:
            self._keep(batch, [self._up(self.leaves[i].v) for i in batch], hyper)

    def _update(self, grads: Gradients, hyper: Hyper, total: Tensor | None, now: Scalar) -> None:
        rate = hyper.lr if total is None else hyper.lr / root_mean_square(total).to(self.work_dtype)
        for batch, gs in self._present(grads):
            leaves = [self.leaves[i] for i in batch]
            ps, ms, vs = ([self._up(getattr(leaf, name)) for leaf in leaves] for name in "pmv")
            _step(ps, gs, ms, vs, hyper, rate)
            for leaf, p, m, v in zip(leaves, ps, ms, vs, strict=True):
                if p is not leaf.p:
                    leaf.p.copy_(p)
                if m is not leaf.m:
                    self._store(m, leaf.m, 0, leaf.index, 0, now)
                    self._store(v, leaf.v, 1, leaf.index, 0, now)
                    v.copy_(leaf.v)  # the sums are those of the v that is kept
            if hyper.rule.normalised:
                self._keep(batch, vs, hyper)

    def _keep(self, batch: list[int], vs: Tensors, hyper: Hyper) -> None:
        for i, part in zip(batch, _eta_sums(vs, hyper), strict=True):
            self._parts[i] = part

    def _present(self, grads: Gradients) -> Iterator[tuple[list[int], Tensors]]:
        for batch in self._batches:
            found = [(i, g) for i in batch if (g := grads[i]) is not None]
            if found:
                yield [i for i, _ in found], [self._up(g) for _, g in found]

    def _up(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.work_dtype)


def _step(ps: Tensors, gs: Tensors, ms: Tensors, vs: Tensors, hyper: Hyper, rate: Scalar) -> None:
    rule = hyper.rule
    gs = _effective(ps, gs, hyper)
    if rule.decoupled and hyper.weight_decay:
        torch._foreach_mul_(ps, 1 - hyper.lr * hyper.weight_decay)
    torch._foreach_lerp_(ms, gs, 1 - hyper.beta1)
    before = torch._foreach_sqrt(vs) if rule.delayed else None
    torch._foreach_mul_(vs, hyper.beta2)
    torch._foreach_addcmul_(vs, gs, gs, value=1 - hyper.beta2)
    roots = torch._foreach_sqrt(vs)
    if before is not None:
        _take_where_positive(roots, before)
    torch._foreach_add_(roots, hyper.eps)
    if isinstance(rate, Tensor):
        steps = torch._foreach_div(ms, roots)
        torch._foreach_mul_(steps, rate)
        torch._foreach_sub_(ps, steps)
    else:
        torch._foreach_addcdiv_(ps, ms, roots, value=-rate)


def _effective(ps: Tensors, gs: Tensors, hyper: Hyper) -> Tensors:
    """±g, plus λw where the decay is not decoupled. The gradients themselves are left as they are."""
    if hyper.maximize:
        gs = list(torch._foreach_neg(gs))
    if hyper.weight_decay and not hyper.rule.decoupled:
        gs = list(torch._foreach_add(gs, ps, alpha=hyper.weight_decay))
    return gs


def _take_where_positive(own: Roots, before: Roots) -> None:
    """own ← before where that is positive: a coordinate without history takes its own first v.

    Sign is 0 or 1, for which lerp gives one of the two exactly, if both are finite.
    """
    for roots in (own, before):
        torch._foreach_clamp_max_(roots, torch.finfo(roots[0].dtype).max)
    torch._foreach_lerp_(own, before, torch._foreach_sign(before))


def _eta_sums(vs: Tensors, hyper: Hyper) -> Tensor:
    """Per tensor (Σ η², d) over the coordinates with v > 0: shape (n, 2), fp64."""
    etas = torch._foreach_sqrt(vs)
    alive = torch._foreach_sign(etas)
    torch._foreach_add_(etas, hyper.eps)
    torch._foreach_reciprocal_(etas)
    torch._foreach_mul_(etas, alive)
    kappa = hyper.damping
    if kappa != 1:
        torch._foreach_mul_(etas, kappa)
    sums = torch.stack(torch._foreach_norm(etas)).double().square_().div_(kappa**2)
    counts = torch.stack(torch._foreach_norm(alive, 1, torch.float64))
    return torch.stack((sums, counts), dim=1)
