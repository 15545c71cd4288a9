"""The arithmetic of one piece of one tensor on a CPU, with temporaries that are allocated once and used again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from paretorch.optim.rule import Hyper, Scalar

_LOWEST = 1e-35
"""Below, fp32 loses digits and may come to 0."""
_ROUNDING = 1 - 1e-6
Store = Callable[[Tensor, Tensor, int, int, int, Scalar], None]


@dataclass
class Piece:
    """A part of a leaf (by its index in the optimizer), where it begins, and what is known of its v."""

    p: Tensor
    m: Tensor
    v: Tensor
    index: int
    start: int
    total: float = 0.0
    live: int = 0
    floor: float = 0.0
    """No coordinate of v is below it. v falls by a factor of β₂ a step at most: while this is well above 0, none is dead."""

    @property
    def all_live(self) -> bool:
        """Whether every coordinate is known to have a history."""
        return self.floor >= _LOWEST


class Worker:
    """Steps one piece at a time."""

    def __init__(self, longest: int, dtype: torch.dtype, store: Store) -> None:
        self._dtype, self._store = dtype, store
        self._scratch = torch.empty(6, longest, dtype=dtype)
        self._temporaries: dict[tuple[int, torch.Size], Tensor] = {}

    def place(self, which: int, length: int) -> Tensor:
        """Scratch that a call may fill before it asks for a step: 0 for p, 1 for g, 2 for m, 3 for v."""
        return self._scratch[which, :length]

    def step(self, piece: Piece, g: Tensor, hyper: Hyper, rate: float, now: Scalar) -> None:
        """Update p, m and v of the piece, and take Σ η² of the new v while it is in the cache."""
        p, m, v = self._up(piece.p, 0), self._up(piece.m, 2), self._up(piece.v, 3)
        g = self._effective(p, self._up(g, 1), hyper)
        if hyper.rule.decoupled and hyper.weight_decay:
            p.mul_(1 - float(hyper.lr) * hyper.weight_decay)
        m.lerp_(g, 1 - hyper.beta1)
        root = self._update_second(piece, v, g, hyper)
        p.addcdiv_(m, root.add_(float(hyper.eps)), value=-rate)
        if p is not piece.p:
            piece.p.copy_(p)
        if m is not piece.m:
            self._store(m, piece.m, 0, piece.index, piece.start, now)
            self._store(v, piece.v, 1, piece.index, piece.start, now)
            v.copy_(piece.v)  # the sums are those of the v that is kept
            piece.floor = 0.0  # rounding may take v lower
        piece.floor *= hyper.beta2 * _ROUNDING
        self._find_floor(piece, v)
        if hyper.rule.normalised:
            self._sum(piece, v, hyper)

    def measure(self, piece: Piece, hyper: Hyper) -> None:
        """Take Σ η² from v as it stands."""
        piece.floor = 0.0
        v = self._up(piece.v, 3)
        self._find_floor(piece, v)
        self._sum(piece, v, hyper)

    def preview(self, piece: Piece, g: Tensor, hyper: Hyper) -> tuple[float, int]:
        """Σ η² and d of v₁ = (1 − β₂) g₁²."""
        g = self._effective(self._up(piece.p, 0), self._up(g, 1), hyper)
        first = Piece(
            piece.p, piece.m, torch.mul(g, g, out=self._temporary(g, 3)).mul_(1 - hyper.beta2), piece.index, 0
        )
        self._sum(first, first.v, hyper)
        return first.total, first.live

    def _effective(self, p: Tensor, g: Tensor, hyper: Hyper) -> Tensor:
        decay = 0.0 if hyper.rule.decoupled else hyper.weight_decay
        if not (decay or hyper.maximize):
            return g
        g = torch.mul(g, -1 if hyper.maximize else 1, out=self._temporary(g, 1))
        return g.add_(p, alpha=decay) if decay else g

    def _update_second(self, piece: Piece, v: Tensor, g: Tensor, hyper: Hyper) -> Tensor:
        """Update v; the root of the v that η reads."""
        delayed, root = hyper.rule.delayed, self._temporary(v, 4)
        if delayed:
            root = torch.sqrt(v, out=root) if piece.all_live else root.copy_(v)
        v.mul_(hyper.beta2).addcmul_(g, g, value=1 - hyper.beta2)
        if not delayed:
            return self._root(v, piece, hyper)
        if piece.all_live:
            return root
        # A coordinate without history takes its own first v (up to ∞), any other none of it. where() takes four times as long.
        limit = torch.le(root, 0, out=self._temporary(v, 5)).mul_(torch.finfo(v.dtype).max).mul_(2)
        return self._root(root.add_(torch.minimum(v, limit, out=limit)), piece, hyper)

    def _root(self, v: Tensor, piece: Piece, hyper: Hyper) -> Tensor:
        """√v. Where v is 0 or subnormal and ε hides it, that of a little more: the square root of those is slow."""
        root, kind = self._temporary(v, 4), torch.finfo(v.dtype)
        if not piece.all_live and math.sqrt(kind.tiny) < float(hyper.eps) * kind.eps / 4:
            v = torch.clamp_min(v, kind.tiny, out=root)
        return torch.sqrt(v, out=root)

    def _find_floor(self, piece: Piece, v: Tensor) -> None:
        if not piece.all_live and v.numel():
            piece.floor = float(v.amin()) * _ROUNDING

    def _sum(self, piece: Piece, v: Tensor, hyper: Hyper) -> None:
        """Σ η² and d of the piece, whose second moments in the working precision are `v`."""
        piece.total, piece.live = 0.0, v.numel()
        if piece.live == 0:
            return
        eta, kappa = self._root(v, piece, hyper).add_(float(hyper.eps)), hyper.damping
        if piece.all_live and kappa == 1:
            eta.reciprocal_()
        else:
            live = torch.gt(v, 0, out=self._temporary(v, 5))
            piece.live = int(live.sum(dtype=torch.float64))
            torch.div(live.mul_(kappa), eta, out=eta)
        eta = eta.reshape(-1)
        piece.total = float(torch.dot(eta, eta)) / kappa**2

    def _up(self, tensor: Tensor, place: int) -> Tensor:
        """The tensor itself, or its values in the working precision."""
        if tensor.dtype == self._dtype:
            return tensor
        return self._temporary(tensor, place).copy_(tensor)

    def _temporary(self, like: Tensor, place: int) -> Tensor:
        key = (place, like.shape)
        found = self._temporaries.get(key)
        if found is None:
            found = self._temporaries[key] = self._scratch[place, : like.numel()].view(like.shape)
        return found
