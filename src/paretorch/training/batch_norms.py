"""Batch norm over the batch of all ranks, on any device: x̂ = (x - μ) / √(σ² + ε) with μ and σ² of the whole batch.

torch's SyncBatchNorm is for GPUs alone. Results then do not depend on the number of ranks, which they would if each rank took
the statistics of its own part.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from paretorch.training.ranks import Ranks


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
    wide = x.float()
    # All ranks have equally many rows, so the means over ranks are those over the batch.
    mean = _sum(wide.mean(axes)) / ranks.count
    centred = wide - mean.view(shape)
    variance = _sum(centred.square().mean(axes)) / ranks.count
    if norm.training and norm.track_running_stats:
        _track(norm, mean.detach(), variance.detach(), ranks.count * x.numel() // x.shape[1])
    scaled = centred * torch.rsqrt(variance + norm.eps).view(shape)
    if norm.affine:
        scaled = scaled * norm.weight.float().view(shape) + norm.bias.float().view(shape)
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
