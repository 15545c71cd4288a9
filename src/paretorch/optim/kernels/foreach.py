"""The update as multi-tensor (`torch._foreach_`) operations over whole tensors: each is one launch on an accelerator."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from paretorch.optim.hyperparameters import Hyperparameters, Scalar
from paretorch.optim.kernels.bucket import Bucket, Gradients, root_mean_square
from paretorch.optim.kernels.parameter import ParameterView
from paretorch.support.arithmetic import widened, widest_float

MAX_BATCH = 1 << 25
"""Elements that are stepped at once on an accelerator, unless one parameter alone has more. An operation on so many takes
longer than its launch, and the temporaries are smaller than those of a whole large network."""
MAX_BATCH_ON_CPU = 1 << 22
"""The same on a CPU, where launches cost nothing and smaller temporaries come from memory that is already mapped."""
Tensors = list[Tensor]


class ForeachBucket(Bucket):
    """Steps many parameters at once. The host never waits for the device.

    Args:
        views: the parameters.
        seed: of the stochastic rounding.
        single: step one parameter after the other, which needs less memory.
    """

    def __init__(self, views: list[ParameterView], seed: int, single: bool) -> None:
        super().__init__(views, seed)
        longest = MAX_BATCH_ON_CPU if self.device.type == "cpu" else MAX_BATCH
        self._batches = _batches([view.p.numel() for view in views], 0 if single else longest)
        zero = torch.zeros(2, dtype=widest_float(self.device), device=self.device)
        self._parts = [zero] * len(views)

    def eta_sums(self) -> Tensor:
        return torch.stack(self._parts).sum(0)

    def preview(self, grads: Gradients, hyper: Hyperparameters) -> Tensor:
        total = torch.zeros(2, dtype=widest_float(self.device), device=self.device)
        for batch, gs in self._with_gradients(grads):
            ps = [self._to_work_dtype(self.views[i].p) for i in batch]
            squares = list(torch._foreach_pow(_effective_gradients(ps, gs, hyper), 2))
            torch._foreach_mul_(squares, 1 - hyper.beta2)
            total += _eta_sums(_roots(squares), hyper).sum(0)
        return total

    def _measure(self, hyper: Hyperparameters) -> None:
        for batch in self._batches:
            self._record_sums(batch, _roots([self._to_work_dtype(self.views[i].v) for i in batch]), hyper)

    def _update(self, grads: Gradients, hyper: Hyperparameters, total: Tensor | None, now: Scalar) -> None:
        rate = hyper.lr if total is None else hyper.lr / root_mean_square(total).to(self.work_dtype)
        for batch, gs in self._with_gradients(grads):
            views = [self.views[i] for i in batch]
            ps, ms, vs = ([self._to_work_dtype(getattr(view, name)) for view in views] for name in "pmv")
            roots = _step(ps, gs, ms, vs, hyper, rate)
            for view, p, m, v in zip(views, ps, ms, vs, strict=True):
                if p is not view.p:
                    view.p.copy_(p)
                if m is not view.m:
                    self._store(m, view.m, 0, view.index, 0, now)
                    self._store(v, view.v, 1, view.index, 0, now)
                    v.copy_(view.v)
                    roots = None  # the sums are those of the v that is kept
            if hyper.rule.normalised:
                self._record_sums(batch, roots or _roots(vs), hyper)

    def _record_sums(self, batch: list[int], roots: Tensors, hyper: Hyperparameters) -> None:
        for i, part in zip(batch, _eta_sums(roots, hyper), strict=True):
            self._parts[i] = part

    def _with_gradients(self, grads: Gradients) -> Iterator[tuple[list[int], Tensors]]:
        for batch in self._batches:
            found = [(i, g) for i in batch if (g := grads[i]) is not None]
            if found:
                yield [i for i, _ in found], [self._to_work_dtype(g) for _, g in found]

    def _to_work_dtype(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.work_dtype)


def _batches(sizes: list[int], longest: int) -> list[list[int]]:
    """Group neighbours whose sizes add up to at most `longest`; a larger one is alone."""
    batches: list[list[int]] = []
    length = 0
    for i, size in enumerate(sizes):
        if not batches or length + size > longest:
            batches.append([])
            length = 0
        batches[-1].append(i)
        length += size
    return batches


def _step(ps: Tensors, gs: Tensors, ms: Tensors, vs: Tensors, hyper: Hyperparameters, rate: Scalar) -> Tensors | None:
    """Update p, m and v, and return the roots of the new v, or None if they were overwritten."""
    rule = hyper.rule
    gs = _effective_gradients(ps, gs, hyper)
    if rule.decoupled and hyper.weight_decay:
        torch._foreach_mul_(ps, 1 - hyper.lr * hyper.weight_decay)
    torch._foreach_lerp_(ms, gs, 1 - hyper.beta1)
    before = _roots(vs) if rule.delayed else None
    torch._foreach_mul_(vs, hyper.beta2)
    torch._foreach_addcmul_(vs, gs, gs, value=1 - hyper.beta2)
    after = _roots(vs)
    used = after if before is None else _before_or_after(before, after)
    torch._foreach_add_(used, hyper.eps)
    if isinstance(rate, Tensor):
        torch._foreach_div_(used, -rate)
        torch._foreach_addcdiv_(ps, ms, used)
    else:
        torch._foreach_addcdiv_(ps, ms, used, value=-rate)
    return None if before is None else after


def _effective_gradients(ps: Tensors, gs: Tensors, hyper: Hyperparameters) -> Tensors:
    """±g, plus λw if the decay is not decoupled. The gradients themselves are not changed."""
    if hyper.maximize:
        gs = list(torch._foreach_neg(gs))
    if hyper.weight_decay and not hyper.rule.decoupled:
        gs = list(torch._foreach_add(gs, ps, alpha=hyper.weight_decay))
    return gs


def _roots(vs: Tensors) -> Tensors:
    return list(torch._foreach_sqrt(vs))


def _before_or_after(before: Tensors, after: Tensors) -> Tensors:
    """`before` if it is positive, else `after`: a coordinate without history uses its own first v.

    The sign is 0 or 1, for which lerp returns exactly one of the two, if both are finite.
    """
    for roots in (before, after):
        torch._foreach_clamp_max_(roots, torch.finfo(roots[0].dtype).max)
    return list(torch._foreach_lerp(after, before, torch._foreach_sign(before)))


def _eta_sums(roots: Tensors, hyper: Hyperparameters) -> Tensor:
    """Per tensor (Σ η², d) over the coordinates with √v > 0: shape (n, 2), in the widest dtype of the device. The roots are overwritten."""
    etas = torch._foreach_sign(roots)
    counts = torch.stack(torch._foreach_norm(etas, 1, widest_float(etas[0].device)))
    torch._foreach_add_(roots, hyper.eps)
    torch._foreach_div_(etas, roots)
    kappa = hyper.eta_scale
    if kappa != 1:
        torch._foreach_mul_(etas, kappa)
    sums = widened(torch.stack(torch._foreach_norm(etas))).square_().div_(kappa**2)
    return torch.stack((sums, counts), dim=1)
