"""Tensors that may be sharded (FSDP2): read whole, write whole, add up."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(tensor: Tensor) -> Tensor:
    """The full tensor on every rank, detached."""
    value = tensor.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value


def write(target: Tensor, value: Tensor) -> None:
    """Copy a full tensor into a plain or sharded one, in place."""
    with torch.no_grad():
        if isinstance(target, DTensor):
            target.copy_(distribute_tensor(value.to(target.dtype), target.device_mesh, target.placements))
        else:
            target.copy_(value)


def on_one_gpu(parameters: list[torch.nn.Parameter]) -> bool:
    """Whether fused optimizers suit the parameters: all whole, all on a GPU."""
    return all(p.is_cuda and not isinstance(p.data, DTensor) for p in parameters)


def local(tensor: Tensor) -> Tensor:
    """This rank's part, sharing memory with the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def total(function: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """Σ function(x) over the whole tensor, whatever part of it lives here."""
    value = function(tensor.detach()).sum()
    return value.full_tensor() if isinstance(value, DTensor) else value
