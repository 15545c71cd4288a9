"""The update for CPUs: tensor by tensor in pieces that stay in the second level cache.

A chain of ten elementwise operations over a whole tensor moves it through main memory ten times. Cut in pieces, it comes
from memory once, and the chain runs at the speed of the cache. Temporaries are allocated once and used again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from paretorch.optim._bucket import Bucket, Gradients
from paretorch.optim._leaf import Leaf
from paretorch.optim._norm import root_mean_square
from paretorch.optim._rule import Hyper, Scalar

PIECE = 1 << 16
"""Elements: p, g, m, v and a temporary of fp32 take 1.3 MB, and every thread gets at least the 32768 that torch gives one."""


@dataclass
class _Piece:
    """A part of a leaf, where it begins, and what is known of its v."""

    p: Tensor
    m: Tensor
    v: Tensor
    start: int
    total: float = 0.0
    live: int = 0


class PieceBucket(Bucket):
    """Steps leaves on a CPU. Small tensors are one piece each."""

    def __init__(self, leaves: list[Leaf], seed: int) -> None:
        super().__init__(leaves, seed)
        self._length = PIECE * ((torch.get_num_threads() + 1) // 2)
        self._pieces = [self._cut(leaf) for leaf in leaves]
        longest = max((piece.p.numel() for pieces in self._pieces for piece in pieces), default=0)
        self._scratch = torch.empty(5, longest, dtype=self.work_dtype)
        self._temporaries: dict[tuple[int, torch.Size], Tensor] = {}

    def stats(self) -> Tensor:
        pieces = [piece for pieces in self._pieces for piece in pieces]
        total = math.fsum(piece.total for piece in pieces)
        return torch.tensor([total, sum(piece.live for piece in pieces)], dtype=torch.float64)

    def preview(self, grads: Gradients, hyper: Hyper) -> Tensor:
        sums, lives = [0.0], 0
        for pieces, grad in zip(self._pieces, grads, strict=True):
            for piece, g in zip(pieces, () if grad is None else self._split(grad), strict=grad is not None):
                g = self._effective(self._up(piece.p, 0), self._up(g, 1), hyper)
                total, live = self._eta_sum(torch.mul(g, g, out=self._temporary(g, 3)).mul_(1 - hyper.beta2), hyper)
                sums.append(total)
                lives += live
        return torch.tensor([math.fsum(sums), lives], dtype=torch.float64)

    def _measure(self, hyper: Hyper) -> None:
        for pieces in self._pieces:
            for piece in pieces:
                piece.total, piece.live = self._eta_sum(self._up(piece.v, 3), hyper)

    def _update(self, grads: Gradients, hyper: Hyper, total: Tensor | None, now: Scalar) -> None:
        rate = float(hyper.lr) / (1.0 if total is None else float(root_mean_square(total)))
        for leaf, pieces, grad in zip(self.leaves, self._pieces, grads, strict=True):
            if grad is not None:
                for piece, g in zip(pieces, self._split(grad), strict=True):
                    self._step(piece, g, hyper, rate, leaf.index, now)

    def _step(self, piece: _Piece, g: Tensor, hyper: Hyper, rate: float, index: int, now: Scalar) -> None:
        rule = hyper.rule
        p, m, v = self._up(piece.p, 0), self._up(piece.m, 2), self._up(piece.v, 3)
        g = self._effective(p, self._up(g, 1), hyper)
        if rule.decoupled and hyper.weight_decay:
            p.mul_(1 - float(hyper.lr) * hyper.weight_decay)
        m.lerp_(g, 1 - hyper.beta1)
        root = self._temporary(p, 4)
        if rule.delayed:
            torch.sqrt(v, out=root)
        v.mul_(hyper.beta2).addcmul_(g, g, value=1 - hyper.beta2)
        if not rule.delayed:
            torch.sqrt(v, out=root)
        elif piece.live < v.numel():
            # A coordinate without history takes its own first v.
            root = torch.where(root == 0, v.sqrt(), root)
        p.addcdiv_(m, root.add_(float(hyper.eps)), value=-rate)
        if p is not piece.p:
            piece.p.copy_(p)
        if m is not piece.m:
            self._store(m, piece.m, 0, index, piece.start, now)
            self._store(v, piece.v, 1, index, piece.start, now)
            v.copy_(piece.v)  # the sums are those of the v that is kept
        if rule.normalised:
            piece.total, piece.live = self._eta_sum(v, hyper)

    def _effective(self, p: Tensor, g: Tensor, hyper: Hyper) -> Tensor:
        decay = 0.0 if hyper.rule.decoupled else hyper.weight_decay
        if not (decay or hyper.maximize):
            return g
        g = torch.mul(g, -1 if hyper.maximize else 1, out=self._temporary(g, 1))
        return g.add_(p, alpha=decay) if decay else g

    def _eta_sum(self, v: Tensor, hyper: Hyper) -> tuple[float, int]:
        """Σ η² over the coordinates with v > 0, and how many these are."""
        if v.numel() == 0:
            return 0.0, 0
        eta = torch.sqrt(v, out=self._temporary(v, 4))
        live = v.numel()
        dead = float(eta.amin()) <= 0
        eta.add_(float(hyper.eps)).reciprocal_()
        kappa = hyper.damping
        if dead or kappa != 1:
            eta.mul_((v > 0).to(eta.dtype) * kappa)
            live = int(torch.count_nonzero(v))
        eta = eta.reshape(-1)
        return float(torch.dot(eta, eta)) / kappa**2, live

    def _up(self, tensor: Tensor, place: int) -> Tensor:
        """The tensor itself, or its values in the working precision."""
        if tensor.dtype == self.work_dtype:
            return tensor
        return self._temporary(tensor, place).copy_(tensor)

    def _temporary(self, like: Tensor, place: int) -> Tensor:
        key = (place, like.shape)
        found = self._temporaries.get(key)
        if found is None:
            found = self._temporaries[key] = self._scratch[place, : like.numel()].view(like.shape)
        return found

    def _cut(self, leaf: Leaf) -> list[_Piece]:
        parts = zip(self._split(leaf.p), self._split(leaf.m), self._split(leaf.v), strict=True)
        return [_Piece(*views, i * self._length) for i, views in enumerate(parts)]

    def _split(self, tensor: Tensor) -> tuple[Tensor, ...]:
        if tensor.numel() <= self._length or tensor.dim() != 1:
            return (tensor,)
        return torch.split(tensor, self._length)
