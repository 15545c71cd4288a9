"""Tensors that may be sharded (FSDP2): read whole, write whole, add up.

A sharded tensor is known by its `full_tensor`: importing its class would triple the time `import paretorch` takes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def gather(tensor: Tensor) -> Tensor:
    """The full tensor on every rank, in the graph of the sharded one."""
    if is_sharded(tensor):
        sharded: Any = tensor
        full: Tensor = sharded.full_tensor()
        return full
    return tensor


def whole(tensor: Tensor) -> Tensor:
    """The full tensor on every rank, detached."""
    return gather(tensor.detach())


def local(tensor: Tensor) -> Tensor:
    """This rank's part, sharing memory with the tensor."""
    if is_sharded(tensor):
        sharded: Any = tensor
        part: Tensor = sharded.to_local()
        return part
    return tensor


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """A full tensor, the same on every rank, laid out as another one is."""
    if not is_sharded(like):
        return value
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = like
    return distribute_tensor(value, sharded.device_mesh, sharded.placements, src_data_rank=None)


def write(target: Tensor, value: Tensor) -> None:
    """Copy a full tensor into a plain or sharded one, in place."""
    with torch.no_grad():
        target.copy_(shard_like(value.to(target.dtype), target))


def total(function: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """Σ function(x) over the whole tensor, whatever part of it lives here."""
    return gather(function(tensor.detach()).sum())


def on_one_gpu(parameters: list[nn.Parameter]) -> bool:
    """Whether fused optimizers and compiled steps suit the parameters: all whole, all on a GPU."""
    return all(p.is_cuda and not is_sharded(p.data) for p in parameters)


def reshard(model: nn.Module) -> None:
    """Free the whole parameters that FSDP2 has left gathered after a forward pass without a backward pass."""
    for module in model.modules():
        sharding: Any = module
        if hasattr(module, "reshard") and hasattr(module, "unshard"):
            sharding.reshard()
