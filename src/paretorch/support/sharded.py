"""Tensors that may be sharded (FSDP2): gather, write, add up.

A sharded tensor is recognized by its `full_tensor`: importing its class would triple the time of `import paretorch`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def gather(tensor: Tensor) -> Tensor:
    """Return the full tensor on every rank, in the graph of the sharded one."""
    if is_sharded(tensor):
        sharded: Any = tensor
        full: Tensor = sharded.full_tensor()
        return full
    return tensor


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor on every rank, detached."""
    return gather(tensor.detach())


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part, sharing memory with the tensor."""
    if is_sharded(tensor):
        sharded: Any = tensor
        part: Tensor = sharded.to_local()
        return part
    return tensor


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """Return a full tensor, equal on every rank, sharded like another one."""
    if not is_sharded(like):
        return value
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = like
    return distribute_tensor(value, sharded.device_mesh, sharded.placements, src_data_rank=None)


def write(target: Tensor, value: Tensor) -> None:
    """Copy a full tensor into a plain or sharded one, in place."""
    with torch.no_grad():
        target.copy_(shard_like(value.to(target.dtype), target))


def shard_state(optimizer: torch.optim.Optimizer) -> None:
    """Shard what an optimizer has for each sharded parameter, where full tensors were loaded."""
    for parameter, state in optimizer.state.items():
        if isinstance(parameter, Tensor) and is_sharded(parameter):
            for name, value in state.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape and not is_sharded(value):
                    state[name] = shard_like(value, parameter)


def total(function: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """Return Σ function(x) over the whole tensor, whichever part of it this rank has."""
    return gather(function(tensor.detach()).sum())


def on_one_gpu(parameters: list[nn.Parameter]) -> bool:
    """Return whether fused optimizers and compiled steps suit the parameters: none sharded, all on a GPU."""
    return all(p.is_cuda and not is_sharded(p.data) for p in parameters)


def reshard(model: nn.Module) -> None:
    """Free the full parameters that FSDP2 keeps after a forward pass without a backward pass."""
    for module in model.modules():
        sharding: Any = module
        if hasattr(module, "reshard") and hasattr(module, "unshard"):
            sharding.reshard()
