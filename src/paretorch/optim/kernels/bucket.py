"""The parameters that are stepped alike (one group, dtype, device, way of sharding), and what is known of their η."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from paretorch.optim.kernels.leaf import Leaf
from paretorch.optim.kernels.rounding import round_to_bf16, stream_key
from paretorch.optim.rule import Hyper, Scalar

Gradients = list[Tensor | None]


class Bucket(ABC):
    """Steps its leaves, and keeps Σ η² of the v that it wrote last, so that the norm of a step is known before it.

    η_{t+1} depends on v_t alone: the sums are taken while v_t is at hand, and v is read once per step.
    """

    counts: ClassVar[bool] = False
    """Whether `update` can advance a step count on the device by itself; it does where `counting` is set."""
    unscales: ClassVar[bool] = False
    """Whether `update` divides by a gradient scaler's factor, and skips, by itself."""
    versioned: ClassVar[bool] = True
    """Whether torch notices what `update` writes to."""

    def __init__(self, leaves: list[Leaf], seed: int) -> None:
        self.counting = False
        self.leaves, self.seed = leaves, seed
        first = leaves[0].p
        self.device, self.shards = first.device, leaves[0].shards
        self.work_dtype = torch.float64 if first.dtype == torch.float64 else torch.float32
        self._measured_eps: Scalar | None = None

    def stale(self, hyper: Hyper) -> bool:
        """Whether ε or some v changed since the sums were taken."""
        return self.edited() or bool(self._measured_eps != hyper.eps)

    def edited(self) -> bool:
        """Whether some v is not what this bucket wrote: after loading, or by an edit from outside."""
        if self._measured_eps is None:
            return True
        return any([leaf.version != leaf.v._version for leaf in self.leaves])  # noqa: C419 - a list is faster

    def measure(self, hyper: Hyper) -> None:
        """Take the sums from v as it stands."""
        self._measure(hyper)
        self._measured_eps = hyper.eps
        self._settle()

    def update(self, grads: Gradients, hyper: Hyper, total: Tensor | None, now: Scalar) -> None:
        """One step of every leaf that has a gradient; the sums are those of the new v afterwards.

        `total` is (Σ η², d) of the whole network, or None where the rule does not normalise.
        """
        self._update(grads, hyper, total, now)
        self._measured_eps = hyper.eps
        if self.versioned:
            self._settle()
        else:
            # So that a backward pass through the weights as they were is refused.
            increment_version([leaf.p for leaf, g in zip(self.leaves, grads, strict=True) if g is not None])

    def gradients(self) -> Gradients:
        """The gradients of the leaves, in the memory order of the parameters."""
        return [leaf.gradient() for leaf in self.leaves]

    def _settle(self) -> None:
        for leaf in self.leaves:
            leaf.version = leaf.v._version

    @abstractmethod
    def stats(self) -> Tensor:
        """(Σ η², d) over the coordinates with v > 0, fp64, summed in a fixed order."""

    @abstractmethod
    def preview(self, grads: Gradients, hyper: Hyper) -> Tensor:
        """(Σ η², d) of v₁ = (1 − β₂) g₁², for a network without history."""

    @abstractmethod
    def _measure(self, hyper: Hyper) -> None: ...

    @abstractmethod
    def _update(self, grads: Gradients, hyper: Hyper, total: Tensor | None, now: Scalar) -> None: ...

    def _store(self, value: Tensor, out: Tensor, which: int, index: int, start: int, now: Scalar) -> None:
        """Write a moment (`which`: 0 for m, 1 for v) that was worked on in another dtype than it is kept in."""
        if out.dtype == torch.bfloat16:
            round_to_bf16(value, out, stream_key(self.seed, index, which), now, start)
        else:
            out.copy_(value)
