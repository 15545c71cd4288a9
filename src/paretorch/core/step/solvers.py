"""The optimizers that decisions are trained by: torch's own, fused on one GPU."""

import torch
from torch import nn

from paretorch.support.sharded import is_sharded, on_one_gpu


def sgd(parameters: list[nn.Parameter], lr: float, momentum: float, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """SGD with momentum."""
    fused = on_one_gpu(parameters)
    return torch.optim.SGD(
        parameters,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        fused=fused,
        foreach=not fused and _are_alike(parameters),
    )


def adam(parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Adam; on a GPU such that a CUDA graph can hold its step."""
    fused = on_one_gpu(parameters)
    foreach = not fused and _are_alike(parameters)
    return torch.optim.Adam(parameters, lr=lr, fused=fused, foreach=foreach, capturable=parameters[0].is_cuda)


def _are_alike(parameters: list[nn.Parameter]) -> bool:
    """Whether all are sharded, or none: multi-tensor operations take no mixture."""
    return len({is_sharded(one) for one in parameters}) == 1
