"""The update as multi-tensor operations over whole tensors: on accelerators each line is one launch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from paretorch.optim.kernels.bucket import Bucket, Gradients
from paretorch.optim.kernels.leaf import Leaf
from paretorch.optim.kernels.norm import root_mean_square
from paretorch.optim.rule import Hyper, Scalar

TOGETHER = 1 << 25
"""Elements of the leaves that are stepped at once on an accelerator, unless one alone has more: an operation on so many
takes longer than the host takes to ask for the next, and temporaries need not be as large as the network."""
TOGETHER_ON_CPU = 1 << 22
"""The same on a CPU, which asks itself: smaller temporaries come from memory that is already mapped."""
Tensors = list[Tensor]


class ForeachBucket(Bucket):
    """Many leaves at once, or (`single`) one after the other, which needs less memory. The host waits for nothing."""

    def __init__(self, leaves: list[Leaf], seed: int, single: bool) -> None:
        super().__init__(leaves, seed)
        together = TOGETHER_ON_CPU if self.device.type == "cpu" else TOGETHER
        self._batches = _batches([leaf.p.numel() for leaf in leaves], 0 if single else together)
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
            total += _eta_sums(_roots(squares), hyper).sum(0)
        return total

    def _measure(self, hyper: Hyper) -> None:
        for batch in self._batches:
            self._keep(batch, _roots([self._up(self.leaves[i].v) for i in batch]), hyper)

    def _update(self, grads: Gradients, hyper: Hyper, total: Tensor | None, now: Scalar) -> None:
        rate = hyper.lr if total is None else hyper.lr / root_mean_square(total).to(self.work_dtype)
        for batch, gs in self._present(grads):
            leaves = [self.leaves[i] for i in batch]
            ps, ms, vs = ([self._up(getattr(leaf, name)) for leaf in leaves] for name in "pmv")
            roots = _step(ps, gs, ms, vs, hyper, rate)
            for leaf, p, m, v in zip(leaves, ps, ms, vs, strict=True):
                if p is not leaf.p:
                    leaf.p.copy_(p)
                if m is not leaf.m:
                    self._store(m, leaf.m, 0, leaf.index, 0, now)
                    self._store(v, leaf.v, 1, leaf.index, 0, now)
                    v.copy_(leaf.v)
                    roots = None  # the sums are those of the v that is kept
            if hyper.rule.normalised:
                self._keep(batch, roots or _roots(vs), hyper)

    def _keep(self, batch: list[int], roots: Tensors, hyper: Hyper) -> None:
        for i, part in zip(batch, _eta_sums(roots, hyper), strict=True):
            self._parts[i] = part

    def _present(self, grads: Gradients) -> Iterator[tuple[list[int], Tensors]]:
        for batch in self._batches:
            found = [(i, g) for i in batch if (g := grads[i]) is not None]
            if found:
                yield [i for i, _ in found], [self._up(g) for _, g in found]

    def _up(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.work_dtype)


def _batches(sizes: list[int], together: int) -> list[list[int]]:
    """Neighbours whose sizes add up to at most `together`."""
    batches: list[list[int]] = []
    length = 0
    for i, size in enumerate(sizes):
        if not batches or length + size > together:
            batches.append([])
            length = 0
        batches[-1].append(i)
        length += size
    return batches


def _step(ps: Tensors, gs: Tensors, ms: Tensors, vs: Tensors, hyper: Hyper, rate: Scalar) -> Tensors | None:
    """Update p, m and v. The roots of the new v, or None where they were used up."""
    rule = hyper.rule
    gs = _effective(ps, gs, hyper)
    if rule.decoupled and hyper.weight_decay:
        torch._foreach_mul_(ps, 1 - hyper.lr * hyper.weight_decay)
    torch._foreach_lerp_(ms, gs, 1 - hyper.beta1)
    before = _roots(vs) if rule.delayed else None
    torch._foreach_mul_(vs, hyper.beta2)
    torch._foreach_addcmul_(vs, gs, gs, value=1 - hyper.beta2)
    after = _roots(vs)
    used = after if before is None else _first_or_last(before, after)
    torch._foreach_add_(used, hyper.eps)
    if isinstance(rate, Tensor):
        torch._foreach_div_(used, -rate)
        torch._foreach_addcdiv_(ps, ms, used)
    else:
        torch._foreach_addcdiv_(ps, ms, used, value=-rate)
    return None if before is None else after


def _effective(ps: Tensors, gs: Tensors, hyper: Hyper) -> Tensors:
    """±g, plus λw where the decay is not decoupled. The gradients themselves are left as they are."""
    if hyper.maximize:
        gs = list(torch._foreach_neg(gs))
    if hyper.weight_decay and not hyper.rule.decoupled:
        gs = list(torch._foreach_add(gs, ps, alpha=hyper.weight_decay))
    return gs


def _roots(vs: Tensors) -> Tensors:
    return list(torch._foreach_sqrt(vs))


def _first_or_last(before: Tensors, after: Tensors) -> Tensors:
    """The roots before where they are positive; a coordinate without history takes that of its own first v.

    Sign is 0 or 1, for which lerp gives one of the two exactly, if both are finite.
    """
    for roots in (before, after):
        torch._foreach_clamp_max_(roots, torch.finfo(roots[0].dtype).max)
    return list(torch._foreach_lerp(after, before, torch._foreach_sign(before)))


def _eta_sums(roots: Tensors, hyper: Hyper) -> Tensor:
    """Per tensor (Σ η², d) over the coordinates with √v > 0: shape (n, 2), fp64. The roots are used up."""
    etas = torch._foreach_sign(roots)
    counts = torch.stack(torch._foreach_norm(etas, 1, torch.float64))
    torch._foreach_add_(roots, hyper.eps)
    torch._foreach_div_(etas, roots)
    kappa = hyper.damping
    if kappa != 1:
        torch._foreach_mul_(etas, kappa)
    sums = torch.stack(torch._foreach_norm(etas)).double().square_().div_(kappa**2)
    return torch.stack((sums, counts), dim=1)
