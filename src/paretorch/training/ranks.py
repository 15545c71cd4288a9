"""The ranks: processes that train one network together. `torchrun` starts them; they meet here, and agree.

If one rank raises an error, the first rank reports it, and all end.

Batch norms take their statistics over the batch of all ranks: x̂ = (x - μ) / √(σ² + ε) with μ and σ² of the whole batch. Results then
do not depend on the number of ranks. torch's SyncBatchNorm runs on GPUs only.
"""

import contextlib
import functools
import gc
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from paretorch.errors import ConfigError, DivergenceError, PareError

T = TypeVar("T")
_MEET = 600.0  # seconds for all ranks to arrive
_TELL = 2.0  # seconds in which the first rank says what went wrong, before torchrun ends it because of another one
_VARIABLES = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_LOST = ("gloo", "nccl", "connection", "peer", "socket", "timed out", "broken pipe")


@dataclass(frozen=True)
class Ranks:
    """Which of how many ranks this process is.

    Args:
        rank: Its number, from 0.
        count: How many there are; 1 alone needs no group of processes.
        group: The group that they talk in; None: torch's default one.
    """

    rank: int = 0
    count: int = 1
    group: Any = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def apart(self) -> "Ranks":
        """The same ranks with a group of their own, on the CPU: for another thread, whose messages must not meet those of this one."""
        if self.count == 1:
            return self
        return replace(self, group=dist.new_group(backend="gloo", timeout=timedelta(seconds=_MEET)))

    def mean(self, value: Tensor) -> Tensor:
        """The mean over the ranks, of a tensor with the same shape on all of them."""
        if self.count == 1:
            return value
        total = value.clone()
        dist.all_reduce(total, group=self.group)
        return total / self.count

    def any(self, value: bool) -> bool:
        """Whether it is true on any rank."""
        if self.count == 1:
            return value
        flag = torch.tensor([int(value)])
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.group)
        return bool(flag)

    def wait(self) -> None:
        """Return when all ranks are here."""
        if self.count > 1:
            dist.all_reduce(torch.zeros(1), group=self.group)

    def each(self, value: T) -> list[T]:
        """What every rank has, by rank; plain values."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value, group=self.group)
        return found

    def together(self, function: Callable[[], T]) -> T:
        """Call a function that no rank waits in; if it fails on any rank, all of them raise that error."""
        error: PareError | None = None
        result: Any = None
        try:
            result = function()
        except PareError as raised:
            error = raised
        for rank, other in enumerate(self.each(error)):
            if other is not None and error is None and rank != self.rank:
                raise type(other)(f"Rank {rank}: {other}")
            if other is not None:
                raise other
        return result  # type: ignore[no-any-return]

    def from_first(self, function: Callable[[], T]) -> T:
        """Call a function on the first rank; all get what it returns, or raise what it raises."""
        result = self.together(lambda: function() if self.is_first else None)
        return self.each(result)[0]  # type: ignore[return-value]


def launched() -> int:
    """How many ranks a launcher such as torchrun has started; 1 without one."""
    text = os.environ.get("WORLD_SIZE", "1")
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"WORLD_SIZE={text!r} is no number of ranks: start with torchrun, or unset it")
    return int(text)


def device_of_rank(name: str) -> str:
    """The device of this rank, where each rank of a machine has a GPU of its own."""
    if launched() > 1:
        _require_own(name)
    if launched() == 1 or name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    index, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if index >= count:
        raise ConfigError(f"There are more ranks than the {count} GPUs of this machine: use --nproc-per-node {count}")
    return f"cuda:{index}"


def _require_own(name: str) -> None:
    """Refuse a device that ranks cannot have."""
    if name.startswith("mps"):
        raise ConfigError("Ranks train on CPUs and on NVIDIA GPUs, not on mps: use --device cpu, or one process")
    if name.startswith("cuda:") and os.environ.get("LOCAL_WORLD_SIZE", "1") != "1":
        raise ConfigError(
            f"Each rank of a machine has a GPU of its own, and --device {name} is one GPU: use --device cuda"
        )


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """Meet the other ranks, and leave them at the end; gloo on CPUs, NCCL on GPUs."""
    count = launched()
    if count == 1:
        yield Ranks()
        return
    if missing := [name for name in _VARIABLES if name not in os.environ]:
        raise ConfigError(f"WORLD_SIZE is {count} and {missing[0]} is not set: start the ranks with torchrun")
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    # Flags and objects go over gloo on the CPU, whatever the network is on.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=_MEET))
    except (RuntimeError, ValueError) as error:
        raise PareError(f"The {count} ranks did not meet at {where}: {_first_line(error)}") from error
    ranks = Ranks(dist.get_rank(), count)
    try:
        yield ranks
    except PareError as error:
        if ranks.is_first:
            raise
        time.sleep(_TELL)
        raise SystemExit(_code(error)) from None
    except RuntimeError as error:
        if any(word in str(error).lower() for word in _LOST):
            raise PareError(
                f"Rank {ranks.rank} lost another rank, which has ended: continue with --resume, on any number of ranks"
            ) from error
        raise
    finally:
        gc.collect()  # whatever holds on to the group must be gone before the group is
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def _code(error: PareError) -> int:
    return 2 if isinstance(error, ConfigError) else 3 if isinstance(error, DivergenceError) else 1


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


@contextlib.contextmanager
def over_all_ranks(model: nn.Module, ranks: Ranks) -> Iterator[None]:
    """Inside, the batch norms of a network in train mode take their statistics over all ranks."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)] if ranks.count > 1 else []
    for norm in norms:
        norm.forward = functools.partial(_forward, norm, ranks)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


class _Sum(torch.autograd.Function):
    """Σ over the ranks: every rank's loss depends on every rank's part, so that gradients are added up too."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


def _sum(part: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(part)
    return total


def _forward(norm: _BatchNorm, ranks: Ranks, x: Tensor) -> Tensor:
    if not norm.training and norm.track_running_stats:
        return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
    axes = [axis for axis in range(x.dim()) if axis != 1]
    shape = [-1 if axis == 1 else 1 for axis in range(x.dim())]
    wide = x if x.dtype == torch.float64 else x.float()
    # All ranks have equally many rows, so the means over ranks are those over the batch.
    mean = _sum(wide.mean(axes)) / ranks.count
    centred = wide - mean.view(shape)
    variance = _sum(centred.square().mean(axes)) / ranks.count
    if norm.training and norm.track_running_stats:
        _track(norm, mean.detach(), variance.detach(), ranks.count * x.numel() // x.shape[1])
    scaled = centred * torch.rsqrt(variance + norm.eps).view(shape)
    if norm.affine:
        scaled = scaled * norm.weight.to(wide.dtype).view(shape) + norm.bias.to(wide.dtype).view(shape)
    normed: Tensor = scaled.to(x.dtype)
    return normed


def _track(norm: _BatchNorm, mean: Tensor, variance: Tensor, count: int) -> None:
    """Move the running statistics, the variance unbiased, as torch does."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    share = 1.0 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
    unbiased = variance * (count / max(count - 1, 1))
    norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), share)
