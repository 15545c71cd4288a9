"""Small tensors that are stepped as one: of each of them alone, the calls would cost more than the arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paretorch.optim.kernels.leaf import Leaf
from paretorch.optim.kernels.worker import Piece, Worker
from paretorch.optim.rule import Hyper, Scalar


class Pack:
    """Leaves in the working precision, gathered in the scratch of a worker, stepped there, and put back."""

    def __init__(self, leaves: Sequence[Leaf], worker: Worker) -> None:
        self._leaves, self._worker = leaves, worker
        sizes = [leaf.p.numel() for leaf in leaves]
        p, self._g, m, v = (worker.place(which, sum(sizes)) for which in range(4))
        self.piece = Piece(p, m, v, 0, 0)
        """What is known of all of them; its tensors hold their values during a call alone."""
        self._homes = [[getattr(leaf, name) for leaf in leaves] for name in "pmv"]
        self._here = [(one, torch.split(one, sizes)) for one in (p, m, v)]

    def step(self, grads: Sequence[Tensor | None], hyper: Hyper, rate: float, now: Scalar) -> None:
        """Update those that have a gradient."""
        present = [g for g in grads if g is not None]
        if len(present) < len(grads):
            for piece, g in self._each(grads):
                self._worker.step(piece, g, hyper, rate, now)
            if present and hyper.rule.normalised:
                self.measure(hyper)
            return
        for home, (whole, _) in zip(self._homes, self._here, strict=True):
            torch.cat(home, out=whole)
        self._worker.step(self.piece, torch.cat(present, out=self._g), hyper, rate, now)
        for home, (_, parts) in zip(self._homes, self._here, strict=True):
            torch._foreach_copy_(home, parts)

    def measure(self, hyper: Hyper) -> None:
        """Take Σ η² from every v as it stands."""
        torch.cat(self._homes[2], out=self.piece.v)
        self._worker.measure(self.piece, hyper)

    def preview(self, grads: Sequence[Tensor | None], hyper: Hyper) -> list[tuple[float, int]]:
        """Σ η² and d of v₁ = (1 − β₂) g₁², of each that has a gradient."""
        return [self._worker.preview(piece, g, hyper) for piece, g in self._each(grads)]

    def _each(self, grads: Sequence[Tensor | None]) -> list[tuple[Piece, Tensor]]:
        pairs = zip(self._leaves, grads, strict=True)
        return [(Piece(leaf.p, leaf.m, leaf.v, leaf.index, 0), g) for leaf, g in pairs if g is not None]
