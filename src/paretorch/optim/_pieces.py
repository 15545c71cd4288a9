"""The update for CPUs: tensor by tensor, in pieces that stay in the second level cache.

A chain of ten elementwise operations over a whole tensor moves it through main memory ten times. Cut in pieces, it comes
from memory once, and the chain runs at the speed of the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from paretorch.optim._bucket import Bucket, Gradients
from paretorch.optim._leaf import Leaf
from paretorch.optim._norm import root_mean_square
from paretorch.optim._rule import Hyper, Scalar
from paretorch.optim._worker import Piece, Worker

PIECE = 1 << 16
"""Elements per thread: p, g, m, v and a temporary of fp32 take 1.3 MB. Threads share a piece, each its own part of it, so
that it stays in their caches and they meet half as often."""


class PieceBucket(Bucket):
    """Steps leaves on a CPU. Small tensors are one piece each."""

    def __init__(self, leaves: list[Leaf], seed: int) -> None:
        super().__init__(leaves, seed)
        self._size = PIECE * torch.get_num_threads()
        self._pieces = [self._cut(leaf) for leaf in leaves]
        longest = max(piece.p.numel() for pieces in self._pieces for piece in pieces)
        self._worker = Worker(longest, self.work_dtype, self._store)

    def stats(self) -> Tensor:
        pieces = [piece for pieces in self._pieces for piece in pieces]
        return _pair(math.fsum(piece.total for piece in pieces), sum(piece.live for piece in pieces))

    def preview(self, grads: Gradients, hyper: Hyper) -> Tensor:
        found = [self._worker.preview(piece, g, hyper) for piece, g in self._jobs(grads)]
        return _pair(math.fsum(total for total, _ in found), sum(live for _, live in found))

    def _measure(self, hyper: Hyper) -> None:
        for pieces in self._pieces:
            for piece in pieces:
                self._worker.measure(piece, hyper)

    def _update(self, grads: Gradients, hyper: Hyper, total: Tensor | None, now: Scalar) -> None:
        rate = float(hyper.lr) / (1.0 if total is None else float(root_mean_square(total)))
        for piece, g in self._jobs(grads):
            self._worker.step(piece, g, hyper, rate, now)

    def _jobs(self, grads: Gradients) -> Iterator[tuple[Piece, Tensor]]:
        for pieces, grad in zip(self._pieces, grads, strict=True):
            if grad is not None:
                yield from zip(pieces, self._split(grad), strict=True)

    def _cut(self, leaf: Leaf) -> list[Piece]:
        parts = zip(self._split(leaf.p), self._split(leaf.m), self._split(leaf.v), strict=True)
        return [Piece(*views, leaf.index, i * self._size) for i, views in enumerate(parts)]

    def _split(self, tensor: Tensor) -> tuple[Tensor, ...]:
        if tensor.numel() <= self._size or tensor.dim() != 1:
            return (tensor,)
        return torch.split(tensor, self._size)


def _pair(total: float, live: int) -> Tensor:
    return torch.tensor([total, live], dtype=torch.float64)
