"""What all implementations of the update share: the `Bucket` interface, and the norm of η over all buckets.

A bucket holds parameters that are updated in the same way: one group, device, dtype and sharding. AvaGrad divides η by its
root mean square over the whole network, so each bucket sums η² over its own parameters and `combine` adds up the sums of
all buckets, devices and ranks.

States in bf16 are rounded stochastically. The random bits are a hash of (seed, step, tensor, element), so that runs repeat; the
Triton kernel computes the same hash (`_mix` in triton_kernel.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import increment_version

from paretorch.optim.hyperparameters import Hyperparameters, Scalar
from paretorch.optim.kernels.parameter import ParameterView

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    ShardGroups = tuple[ProcessGroup, ...]

_MASK = 0xFFFFFFFF


def stream_key(seed: int, index: int, which: int) -> int:
    """A 32 bit key for the random stream of tensor `index` and moment `which`."""
    key = seed & _MASK
    for word in (index, which):
        key = _mix_int(key ^ _mix_int(word + 0x9E3779B9))
    return key


def round_to_bf16(values: Tensor, out: Tensor, key: int, step: Scalar, offset: int) -> None:
    """Write `values` to bf16 `out`, rounded up with a probability equal to the remainder: E[out] = values.

    Args:
        values: read as fp32.
        out: of the same shape.
        key: from `stream_key`.
        step: the number of the step, on the host or on the device.
        offset: position of values[0] in its tensor, so that a tensor may be rounded in parts.
    """
    position = torch.arange(values.numel(), dtype=torch.int32, device=values.device) + _signed(offset & _MASK)
    if isinstance(step, Tensor):
        salt: int | Tensor = _mix(step.to(values.device, torch.int32) ^ _signed(key))
    else:
        salt = _signed(_mix_int((int(step) ^ key) & _MASK))
    # The 16 bits that bf16 drops are a fraction of its last bit: adding 16 random bits carries with that probability.
    random = _mix(position ^ salt) & 0xFFFF
    bits = values.to(torch.float32).contiguous().view(torch.int32).flatten() + random
    out.copy_((bits & -0x10000).view(torch.float32).view(values.shape))


def _mix(x: Tensor) -> Tensor:
    """A 32 bit hash of every element."""
    # The shifts are logical: the sign bits that an arithmetic shift brings in are masked away.
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * _signed(0x846CA68B)
    return x ^ ((x >> 16) & 0xFFFF)


def _mix_int(x: int) -> int:
    """The same hash of a Python integer."""
    x &= _MASK
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK
    return x ^ (x >> 16)


def _signed(x: int) -> int:
    """The int32 with the same bits as the uint32 `x`."""
    return x - (1 << 32) if x >= 1 << 31 else x


Gradients = list[Tensor | None]


class Bucket(ABC):
    """Updates its parameters, and keeps Σ η² of the v that it wrote last.

    η_{t+1} depends on v_t alone, so the sums for the next step are taken while v_t is written: v is read once per step,
    and the norm of a step is known when the step begins.
    """

    can_count_steps: ClassVar[bool] = False
    """Whether `update` can advance a step count on the device; it does if `counts_steps` is set."""
    handles_grad_scaler: ClassVar[bool] = False
    """Whether `update` divides by a gradient scaler's factor, and skips the step, by itself."""
    writes_are_versioned: ClassVar[bool] = True
    """Whether torch's version counters see the writes of `update`. They do not see writes to raw addresses."""

    def __init__(self, views: list[ParameterView], seed: int) -> None:
        self.counts_steps = False
        self.views, self.seed = views, seed
        first = views[0].p
        self.device, self.shard_groups = first.device, views[0].shard_groups
        self.work_dtype = torch.float64 if first.dtype == torch.float64 else torch.float32
        self._measured_eps: Scalar | None = None

    def is_stale(self, hyper: Hyperparameters) -> bool:
        """Whether ε or some v changed since the sums were taken."""
        return self.was_edited() or bool(self._measured_eps != hyper.eps)

    def was_edited(self) -> bool:
        """Whether some v is not what this bucket wrote: after loading a state, or after an edit from outside."""
        if self._measured_eps is None:
            return True
        return any([view.v_version != view.v._version for view in self.views])  # noqa: C419 - a list is faster

    def measure(self, hyper: Hyperparameters) -> None:
        """Take the sums from v as it is."""
        self._measure(hyper)
        self._measured_eps = hyper.eps
        self._record_versions()

    def update(self, grads: Gradients, hyper: Hyperparameters, total: Tensor | None, now: Scalar) -> None:
        """Step every parameter that has a gradient, and take the sums of the new v.

        Args:
            grads: from `gradients()`.
            hyper: the hyperparameters of the group.
            total: (Σ η², d) of the whole network, or None if the rule does not normalise.
            now: the number of this step.
        """
        self._update(grads, hyper, total, now)
        self._measured_eps = hyper.eps
        if self.writes_are_versioned:
            self._record_versions()
        else:
            # Autograd then refuses a backward pass that saved the weights before this step.
            increment_version([view.p for view, g in zip(self.views, grads, strict=True) if g is not None])

    def gradients(self) -> Gradients:
        """The gradients, in the memory order of the parameters."""
        return [view.gradient() for view in self.views]

    def _record_versions(self) -> None:
        for view in self.views:
            view.v_version = view.v._version

    @abstractmethod
    def eta_sums(self) -> Tensor:
        """(Σ η², d) over the coordinates with v > 0, fp64, summed in a fixed order."""

    @abstractmethod
    def preview(self, grads: Gradients, hyper: Hyperparameters) -> Tensor:
        """(Σ η², d) of v₁ = (1 − β₂) g₁², for a network without history."""

    @abstractmethod
    def _measure(self, hyper: Hyperparameters) -> None: ...

    @abstractmethod
    def _update(self, grads: Gradients, hyper: Hyperparameters, total: Tensor | None, now: Scalar) -> None: ...

    def _store(self, value: Tensor, out: Tensor, moment: int, index: int, start: int, now: Scalar) -> None:
        """Write a moment (0 for m, 1 for v) that was computed in another dtype than it is kept in."""
        if out.dtype == torch.bfloat16:
            round_to_bf16(value, out, stream_key(self.seed, index, moment), now, start)
        else:
            out.copy_(value)


def combine(parts: Iterable[tuple[Tensor, ShardGroups]]) -> Tensor:
    """Add up (Σ η², d) of the buckets, in their order, to that of the network.

    A bucket of sharded parameters has the sums of the local shards only, so they are added over the ranks that hold the
    other shards. Replicated parameters are the same on every rank and are counted once.
    """
    local: dict[ShardGroups, Tensor] = {}
    for sums, groups in parts:
        known = local.get(groups)
        local[groups] = sums if known is None else known + sums.to(known.device, non_blocking=True)
    for groups in [each for each in local if each]:
        local[groups] = local[groups].clone()  # all_reduce writes in place, and the tensor may be the bucket's own
        for group in groups:
            dist.all_reduce(local[groups], group=group)
    totals = list(local.values())
    return sum((t.to(totals[0].device, non_blocking=True) for t in totals[1:]), start=totals[0])


def root_mean_square(total: Tensor) -> Tensor:
    """√(Σ η² / d) as a tensor, so that the host need not wait. 1 if d = 0: then every m is 0 as well."""
    squares, live = total.unbind()
    rms = (squares / live.clamp(min=1)).sqrt()
    return torch.where(live > 0, rms, torch.ones_like(rms))
