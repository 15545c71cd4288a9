"""The update for CPUs where the loop in C cannot serve (no compiler, other dtypes, gaps in memory): in pieces that stay in
the cache, cut from large tensors or packed of small ones.

A chain of ten elementwise operations over a whole tensor moves it through main memory ten times. Cut in pieces, it comes
from memory once, and the chain runs at the speed of the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from paretorch.optim.kernels.bucket import Bucket, Gradients
from paretorch.optim.kernels.leaf import Leaf
from paretorch.optim.kernels.norm import root_mean_square
from paretorch.optim.kernels.pack import Pack
from paretorch.optim.kernels.worker import Piece, Worker
from paretorch.optim.rule import Hyper, Scalar

PIECE = 1 << 17
"""Elements per thread: p, g, m, v and a temporary of fp32 take 2.6 MB, about a core's share of the caches. Smaller pieces
cost more in calls than they save. Threads share a piece, each its own part of it, so that it stays in their caches."""
SMALL = 1 << 13
"""Elements up to which a tensor is worth packing: to gather it and to put it back costs less than calls of its own."""


class PieceBucket(Bucket):
    """Steps leaves on a CPU."""

    def __init__(self, leaves: list[Leaf], seed: int) -> None:
        super().__init__(leaves, seed)
        self._size = PIECE * torch.get_num_threads()
        together = self._together()
        packed = {i for members in together for i in members}
        self._pieces = {i: self._cut(leaf) for i, leaf in enumerate(leaves) if i not in packed}
        lengths = [piece.p.numel() for pieces in self._pieces.values() for piece in pieces]
        lengths += [sum(leaves[i].p.numel() for i in members) for members in together]
        self._worker = Worker(max(lengths), self.work_dtype, self._store)
        self._packs = [(members, Pack([leaves[i] for i in members], self._worker)) for members in together]

    def stats(self) -> Tensor:
        pieces = [piece for pieces in self._pieces.values() for piece in pieces]
        pieces += [pack.piece for _, pack in self._packs]
        return _added_up([(piece.total, piece.live) for piece in pieces])

    def preview(self, grads: Gradients, hyper: Hyper) -> Tensor:
        found = [self._worker.preview(piece, g, hyper) for piece, g in self._jobs(grads)]
        for members, pack in self._packs:
            found += pack.preview([grads[i] for i in members], hyper)
        return _added_up(found)

    def _measure(self, hyper: Hyper) -> None:
        for pieces in self._pieces.values():
            for piece in pieces:
                self._worker.measure(piece, hyper)
        for _, pack in self._packs:
            pack.measure(hyper)

    def _update(self, grads: Gradients, hyper: Hyper, total: Tensor | None, now: Scalar) -> None:
        rate = float(hyper.lr) / (1.0 if total is None else float(root_mean_square(total)))
        for piece, g in self._jobs(grads):
            self._worker.step(piece, g, hyper, rate, now)
        for members, pack in self._packs:
            pack.step([grads[i] for i in members], hyper, rate, now)

    def _jobs(self, grads: Gradients) -> Iterator[tuple[Piece, Tensor]]:
        for i, pieces in self._pieces.items():
            grad = grads[i]
            if grad is not None:
                yield from zip(pieces, self._split(grad), strict=True)

    def _together(self) -> list[list[int]]:
        """The leaves of each pack: small, and in the working precision, as they are in the scratch of the worker."""
        packs: list[list[int]] = [[]]
        length = 0
        for i, leaf in enumerate(self.leaves):
            if leaf.p.dim() == 1 and leaf.p.numel() <= SMALL and leaf.p.dtype == leaf.m.dtype == self.work_dtype:
                if length + leaf.p.numel() > self._size:
                    packs.append([])
                    length = 0
                packs[-1].append(i)
                length += leaf.p.numel()
        return [members for members in packs if len(members) > 1]

    def _cut(self, leaf: Leaf) -> list[Piece]:
        parts = zip(self._split(leaf.p), self._split(leaf.m), self._split(leaf.v), strict=True)
        return [Piece(*views, leaf.index, i * self._size) for i, views in enumerate(parts)]

    def _split(self, tensor: Tensor) -> tuple[Tensor, ...]:
        if tensor.numel() <= self._size or tensor.dim() != 1:
            return (tensor,)
        return torch.split(tensor, self._size)


def _added_up(parts: list[tuple[float, int]]) -> Tensor:
    return torch.tensor([math.fsum(total for total, _ in parts), sum(live for _, live in parts)], dtype=torch.float64)
