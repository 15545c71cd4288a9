"""The update on a CPU if the C loop cannot be used (no compiler, other dtypes, gaps in memory): torch operations, by chunks.

A chain of ten elementwise operations over a large tensor moves it through main memory ten times. Cut into chunks that fit
the cache, it is read from memory once. Small tensors are the opposite problem: the calls cost more than the arithmetic, so
many of them are copied into one chunk and stepped together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paretorch.optim.hyperparameters import Hyperparameters, Scalar
from paretorch.optim.kernels.bucket import Bucket, Gradients, root_mean_square
from paretorch.optim.kernels.parameter import ParameterView

CHUNK_PER_THREAD = 1 << 17
"""Elements per thread: p, g, m, v and a temporary of fp32 take 2.6 MB, about a core's share of the caches. Smaller chunks
cost more in calls than they save. Threads share a chunk, each its own part of it, so that it stays in their caches."""
MAX_PACKED = 1 << 13
"""Tensors of up to so many elements are packed: copying them in and out costs less than calls of their own."""
_SAFE_MIN = 1e-35
"""Below, fp32 loses digits and products may become 0."""
_ROUNDING = 1 - 1e-6
"""A margin for rounding errors in a lower bound."""
Store = Callable[[Tensor, Tensor, int, int, int, Scalar], None]
"""`Bucket._store`."""


class ChunkedBucket(Bucket):
    """Steps parameters on a CPU, chunk by chunk."""

    def __init__(self, views: list[ParameterView], seed: int) -> None:
        super().__init__(views, seed)
        self._chunk_length = CHUNK_PER_THREAD * torch.get_num_threads()
        to_pack = self._choose_packs()
        packed = {i for members in to_pack for i in members}
        self._chunks = {i: self._cut(view) for i, view in enumerate(views) if i not in packed}
        lengths = [chunk.p.numel() for chunks in self._chunks.values() for chunk in chunks]
        lengths += [sum(views[i].p.numel() for i in members) for members in to_pack]
        self._stepper = ChunkStepper(max(lengths), self.work_dtype, self._store)
        self._packs = [(members, Pack([views[i] for i in members], self._stepper)) for members in to_pack]

    def eta_sums(self) -> Tensor:
        chunks = [chunk for chunks in self._chunks.values() for chunk in chunks]
        chunks += [pack.chunk for _, pack in self._packs]
        return _add_up([(chunk.eta_squares, chunk.live) for chunk in chunks])

    def preview(self, grads: Gradients, hyper: Hyperparameters) -> Tensor:
        sums = [self._stepper.preview(chunk, g, hyper) for chunk, g in self._with_gradients(grads)]
        for members, pack in self._packs:
            sums += pack.preview([grads[i] for i in members], hyper)
        return _add_up(sums)

    def _measure(self, hyper: Hyperparameters) -> None:
        for chunks in self._chunks.values():
            for chunk in chunks:
                self._stepper.measure(chunk, hyper)
        for _, pack in self._packs:
            pack.measure(hyper)

    def _update(self, grads: Gradients, hyper: Hyperparameters, total: Tensor | None, now: Scalar) -> None:
        rate = float(hyper.lr) / (1.0 if total is None else float(root_mean_square(total)))
        for chunk, g in self._with_gradients(grads):
            self._stepper.step(chunk, g, hyper, rate, now)
        for members, pack in self._packs:
            pack.step([grads[i] for i in members], hyper, rate, now)

    def _with_gradients(self, grads: Gradients) -> Iterator[tuple[Chunk, Tensor]]:
        for i, chunks in self._chunks.items():
            grad = grads[i]
            if grad is not None:
                yield from zip(chunks, self._split(grad), strict=True)

    def _choose_packs(self) -> list[list[int]]:
        """The members of each pack: small, and kept in the working precision, which is that of the scratch memory."""
        packs: list[list[int]] = [[]]
        length = 0
        for i, view in enumerate(self.views):
            if view.p.dim() == 1 and view.p.numel() <= MAX_PACKED and view.p.dtype == view.m.dtype == self.work_dtype:
                if length + view.p.numel() > self._chunk_length:
                    packs.append([])
                    length = 0
                packs[-1].append(i)
                length += view.p.numel()
        return [members for members in packs if len(members) > 1]

    def _cut(self, view: ParameterView) -> list[Chunk]:
        parts = zip(self._split(view.p), self._split(view.m), self._split(view.v), strict=True)
        return [Chunk(*tensors, view.index, i * self._chunk_length) for i, tensors in enumerate(parts)]

    def _split(self, tensor: Tensor) -> tuple[Tensor, ...]:
        if tensor.numel() <= self._chunk_length or tensor.dim() != 1:
            return (tensor,)
        return torch.split(tensor, self._chunk_length)


@dataclass
class Chunk:
    """Part of a parameter, and what is known of its v."""

    p: Tensor
    m: Tensor
    v: Tensor
    index: int
    """The number of the parameter in the optimizer."""
    start: int
    """The position of the first element in the parameter."""
    eta_squares: float = 0.0
    live: int = 0
    """How many coordinates have v > 0."""
    v_min: float = 0.0
    """A lower bound of v. A step lowers v by a factor of at most β₂, so this is cheaper to keep than to compute."""

    @property
    def all_live(self) -> bool:
        """Whether every coordinate is known to have v > 0."""
        return self.v_min >= _SAFE_MIN


class ChunkStepper:
    """The arithmetic of one chunk at a time, with temporaries that are allocated once.

    Args:
        longest: elements of the longest chunk.
        dtype: the working precision.
        store: writes a moment that is kept in another dtype.
    """

    def __init__(self, longest: int, dtype: torch.dtype, store: Store) -> None:
        self._dtype, self._store = dtype, store
        self._scratch = torch.empty(6, longest, dtype=dtype)
        self._temporaries: dict[tuple[int, torch.Size], Tensor] = {}

    def scratch(self, row: int, length: int) -> Tensor:
        """Memory that a caller may fill before it asks for a step: row 0 for p, 1 for g, 2 for m, 3 for v."""
        return self._scratch[row, :length]

    def step(self, chunk: Chunk, g: Tensor, hyper: Hyperparameters, rate: float, now: Scalar) -> None:
        """Update p, m and v of the chunk, and take Σ η² of the new v while it is in the cache."""
        p, m, v = self._to_work_dtype(chunk.p, 0), self._to_work_dtype(chunk.m, 2), self._to_work_dtype(chunk.v, 3)
        g = self._effective_gradient(p, self._to_work_dtype(g, 1), hyper)
        if hyper.rule.decoupled and hyper.weight_decay:
            p.mul_(1 - float(hyper.lr) * hyper.weight_decay)
        m.lerp_(g, 1 - hyper.beta1)
        root = self._update_v(chunk, v, g, hyper)
        p.addcdiv_(m, root.add_(float(hyper.eps)), value=-rate)
        if p is not chunk.p:
            chunk.p.copy_(p)
        if m is not chunk.m:
            self._store(m, chunk.m, 0, chunk.index, chunk.start, now)
            self._store(v, chunk.v, 1, chunk.index, chunk.start, now)
            v.copy_(chunk.v)  # the sums are those of the v that is kept
            chunk.v_min = 0.0  # rounding may lower v further
        chunk.v_min *= hyper.beta2 * _ROUNDING
        self._find_v_min(chunk, v)
        if hyper.rule.normalised:
            self._sum_etas(chunk, v, hyper)

    def measure(self, chunk: Chunk, hyper: Hyperparameters) -> None:
        """Take Σ η² from v as it is."""
        chunk.v_min = 0.0
        v = self._to_work_dtype(chunk.v, 3)
        self._find_v_min(chunk, v)
        self._sum_etas(chunk, v, hyper)

    def preview(self, chunk: Chunk, g: Tensor, hyper: Hyperparameters) -> tuple[float, int]:
        """Σ η² and d of v₁ = (1 − β₂) g₁²."""
        g = self._effective_gradient(self._to_work_dtype(chunk.p, 0), self._to_work_dtype(g, 1), hyper)
        v = torch.mul(g, g, out=self._temporary(g, 3)).mul_(1 - hyper.beta2)
        first = Chunk(chunk.p, chunk.m, v, chunk.index, 0)
        self._sum_etas(first, first.v, hyper)
        return first.eta_squares, first.live

    def _effective_gradient(self, p: Tensor, g: Tensor, hyper: Hyperparameters) -> Tensor:
        """±g, plus λw if the decay is not decoupled. The gradient itself is not changed."""
        decay = 0.0 if hyper.rule.decoupled else hyper.weight_decay
        if not (decay or hyper.maximize):
            return g
        g = torch.mul(g, -1 if hyper.maximize else 1, out=self._temporary(g, 1))
        return g.add_(p, alpha=decay) if decay else g

    def _update_v(self, chunk: Chunk, v: Tensor, g: Tensor, hyper: Hyperparameters) -> Tensor:
        """Update v, and return the root of the v that η uses."""
        delayed, root = hyper.rule.delayed, self._temporary(v, 4)
        if delayed:
            root = torch.sqrt(v, out=root) if chunk.all_live else root.copy_(v)
        v.mul_(hyper.beta2).addcmul_(g, g, value=1 - hyper.beta2)
        if not delayed:
            return self._root(v, chunk, hyper)
        if chunk.all_live:
            return root
        # Old v plus min(new v, limit): the limit is ∞ for a coordinate without history, else 0. where() is four times slower.
        limit = torch.le(root, 0, out=self._temporary(v, 5)).mul_(torch.finfo(v.dtype).max).mul_(2)
        return self._root(root.add_(torch.minimum(v, limit, out=limit)), chunk, hyper)

    def _root(self, v: Tensor, chunk: Chunk, hyper: Hyperparameters) -> Tensor:
        """√v. Zeros and subnormal numbers, whose root is slow, are rounded up if ε is so large that it makes no difference."""
        root, limits = self._temporary(v, 4), torch.finfo(v.dtype)
        if not chunk.all_live and math.sqrt(limits.tiny) < float(hyper.eps) * limits.eps / 4:
            v = torch.clamp_min(v, limits.tiny, out=root)
        return torch.sqrt(v, out=root)

    def _find_v_min(self, chunk: Chunk, v: Tensor) -> None:
        if not chunk.all_live and v.numel():
            chunk.v_min = float(v.amin()) * _ROUNDING

    def _sum_etas(self, chunk: Chunk, v: Tensor, hyper: Hyperparameters) -> None:
        """Σ η² and d of the chunk, whose second moments in the working precision are `v`."""
        chunk.eta_squares, chunk.live = 0.0, v.numel()
        if chunk.live == 0:
            return
        eta, kappa = self._root(v, chunk, hyper).add_(float(hyper.eps)), hyper.eta_scale
        if chunk.all_live and kappa == 1:
            eta.reciprocal_()
        else:
            live = torch.gt(v, 0, out=self._temporary(v, 5))
            chunk.live = int(live.sum(dtype=torch.float64))
            torch.div(live.mul_(kappa), eta, out=eta)
        eta = eta.reshape(-1)
        chunk.eta_squares = float(torch.dot(eta, eta)) / kappa**2

    def _to_work_dtype(self, tensor: Tensor, row: int) -> Tensor:
        """The tensor itself, or a copy of it in the working precision."""
        if tensor.dtype == self._dtype:
            return tensor
        return self._temporary(tensor, row).copy_(tensor)

    def _temporary(self, like: Tensor, row: int) -> Tensor:
        key = (row, like.shape)
        found = self._temporaries.get(key)
        if found is None:
            found = self._temporaries[key] = self._scratch[row, : like.numel()].view(like.shape)
        return found


class Pack:
    """Small parameters that are copied into the scratch memory of a stepper, stepped there as one chunk, and copied back."""

    def __init__(self, views: Sequence[ParameterView], stepper: ChunkStepper) -> None:
        self._views, self._stepper = views, stepper
        sizes = [view.p.numel() for view in views]
        p, self._g, m, v = (stepper.scratch(row, sum(sizes)) for row in range(4))
        self.chunk = Chunk(p, m, v, 0, 0)
        """What is known of all of them. Its tensors hold their values only during a call."""
        self._originals = [[getattr(view, name) for view in views] for name in "pmv"]
        self._copies = [(whole, torch.split(whole, sizes)) for whole in (p, m, v)]

    def step(self, grads: Sequence[Tensor | None], hyper: Hyperparameters, rate: float, now: Scalar) -> None:
        """Update those that have a gradient: all together, or one by one if some have none."""
        present = [g for g in grads if g is not None]
        if len(present) < len(grads):
            for chunk, g in self._with_gradients(grads):
                self._stepper.step(chunk, g, hyper, rate, now)
            if present and hyper.rule.normalised:
                self.measure(hyper)
            return
        for originals, (whole, _) in zip(self._originals, self._copies, strict=True):
            torch.cat(originals, out=whole)
        self._stepper.step(self.chunk, torch.cat(present, out=self._g), hyper, rate, now)
        for originals, (_, parts) in zip(self._originals, self._copies, strict=True):
            torch._foreach_copy_(originals, parts)

    def measure(self, hyper: Hyperparameters) -> None:
        """Take Σ η² from every v as it is."""
        torch.cat(self._originals[2], out=self.chunk.v)
        self._stepper.measure(self.chunk, hyper)

    def preview(self, grads: Sequence[Tensor | None], hyper: Hyperparameters) -> list[tuple[float, int]]:
        """Σ η² and d of v₁ = (1 − β₂) g₁², of each that has a gradient."""
        return [self._stepper.preview(chunk, g, hyper) for chunk, g in self._with_gradients(grads)]

    def _with_gradients(self, grads: Sequence[Tensor | None]) -> list[tuple[Chunk, Tensor]]:
        pairs = zip(self._views, grads, strict=True)
        return [(Chunk(view.p, view.m, view.v, view.index, 0), g) for view, g in pairs if g is not None]


def _add_up(parts: list[tuple[float, int]]) -> Tensor:
    return torch.tensor(
        [math.fsum(squares for squares, _ in parts), sum(live for _, live in parts)], dtype=torch.float64
    )
