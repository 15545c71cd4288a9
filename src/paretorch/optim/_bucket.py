"""The parameters that are stepped alike (one group, dtype and device), cut into batches for `_foreach`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from paretorch.optim import _foreach
from paretorch.optim._leaf import Leaf
from paretorch.optim._rounding import round_to_bf16, stream_key
from paretorch.optim._rule import Hyper, Scalar

CACHE_PIECE = 1 << 16
"""Elements worked on together on a CPU: p, g, m, v and two temporaries of fp32 then take 1.5 MB."""


@dataclass(frozen=True)
class _Piece:
    """Part of a leaf: its views, where it begins, and where its sums are kept."""

    leaf: int
    part: int
    slot: int
    start: int
    p: Tensor
    m: Tensor
    v: Tensor


class TorchBucket:
    """Steps its leaves with torch operations and keeps Σ η² of the v that were last written.

    `mode` is "fused" (pieces that fit a cache), "foreach" (all tensors at once) or "loop" (one tensor at a time).
    """

    def __init__(self, leaves: list[Leaf], mode: str, seed: int) -> None:
        self.leaves, self.seed = leaves, seed
        first = leaves[0]
        self.device = first.p.device
        self.shards = first.shards
        self.work_dtype = torch.float64 if first.p.dtype == torch.float64 else torch.float32
        self._length = CACHE_PIECE if mode == "fused" else None
        self._batches = self._cut(mode)
        slots = sum(len(batch) for batch in self._batches)
        zero = torch.zeros((), dtype=torch.float64, device=self.device)
        self._sums: list[Tensor] = [zero] * slots
        self._counts: list[Tensor] = [zero] * slots
        self._live = [False] * slots
        self.measured_eps: Scalar | None = None

    def stale(self, hyper: Hyper) -> bool:
        """Whether ε or some v changed since the sums were taken."""
        return bool(self.measured_eps != hyper.eps) or any(leaf.version != leaf.v._version for leaf in self.leaves)

    def measure(self, hyper: Hyper) -> None:
        """Take the sums from v as it stands: after loading, or when ε or v were edited from outside."""
        for batch in self._batches:
            self._keep(batch, [self._up(piece.v) for piece in batch], hyper)
        self._settle(hyper)

    def preview(self, grads: list[Tensor | None], hyper: Hyper) -> Tensor:
        """(Σ η², d) of the v that this step will write, for a network without history."""
        total = torch.zeros(2, dtype=torch.float64, device=self.device)
        for batch, gs in self._batches_with(grads):
            ps = [self._up(piece.p) for piece in batch]
            sums, counts = _foreach.eta_sums(_foreach.first_moments(ps, gs, hyper), hyper)
            total += torch.stack((sums.sum(), counts.sum()))
        return total

    def stats(self) -> Tensor:
        """(Σ η², d) of the v as they are, in a fixed order of summation."""
        return torch.stack((torch.stack(self._sums).sum(), torch.stack(self._counts).sum()))

    def update(self, grads: list[Tensor | None], hyper: Hyper, rms: Scalar, step: Scalar) -> None:
        """One step of every leaf that has a gradient."""
        for batch, gs in self._batches_with(grads):
            ps, ms, vs = ([self._up(getattr(piece, name)) for piece in batch] for name in "pmv")
            _foreach.update(ps, gs, ms, vs, hyper, rms, all(self._live[piece.slot] for piece in batch))
            for piece, p, m, v in zip(batch, ps, ms, vs, strict=True):
                if p is not piece.p:
                    piece.p.copy_(p)
                if m is not piece.m:
                    self._store(piece, m, v, step)
            if hyper.rule.normalised:
                self._keep(batch, vs, hyper)
        self._settle(hyper)

    def _keep(self, batch: list[_Piece], vs: list[Tensor], hyper: Hyper) -> None:
        sums, counts = _foreach.eta_sums(vs, hyper)
        for piece, total, count in zip(batch, sums, counts, strict=True):
            self._sums[piece.slot], self._counts[piece.slot] = total, count
            if self.device.type == "cpu":
                self._live[piece.slot] = int(count) == piece.v.numel()

    def _settle(self, hyper: Hyper) -> None:
        self.measured_eps = hyper.eps
        for leaf in self.leaves:
            leaf.version = leaf.v._version

    def _store(self, piece: _Piece, m: Tensor, v: Tensor, step: Scalar) -> None:
        for which, (value, out) in enumerate(((m, piece.m), (v, piece.v))):
            if out.dtype == torch.bfloat16:
                key = stream_key(self.seed, self.leaves[piece.leaf].index, which)
                round_to_bf16(value, out, key, step, piece.start)
            else:
                out.copy_(value)
        v.copy_(piece.v)  # the sums are those of the v that was stored

    def _up(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.work_dtype)

    def _cut(self, mode: str) -> list[list[_Piece]]:
        pieces: list[_Piece] = []
        for i, leaf in enumerate(self.leaves):
            parts = zip(self._split(leaf.p), self._split(leaf.m), self._split(leaf.v), strict=True)
            for part, views in enumerate(parts):
                pieces.append(_Piece(i, part, len(pieces), part * (self._length or 0), *views))
        if mode == "foreach":
            return [pieces]
        if mode == "loop":
            return [[piece] for piece in pieces]
        batches: list[list[_Piece]] = []
        room = 0
        for piece in pieces:
            room -= piece.p.numel()
            if room < 0:
                batches.append([])
                room = CACHE_PIECE - piece.p.numel()
            batches[-1].append(piece)
        return batches

    def _split(self, tensor: Tensor) -> tuple[Tensor, ...]:
        if self._length is None or tensor.numel() <= self._length or tensor.dim() != 1:
            return (tensor,)
        return torch.split(tensor, self._length)

    def _batches_with(self, grads: list[Tensor | None]) -> Iterator[tuple[list[_Piece], list[Tensor]]]:
        parts = [() if grad is None else self._split(grad) for grad in grads]
        for batch in self._batches:
            present = [piece for piece in batch if parts[piece.leaf]]
            if present:
                yield present, [self._up(parts[piece.leaf][piece.part]) for piece in present]
