"""The optimizers that decisions are trained by: torch's own, fused on one GPU."""

import torch
from torch import nn

from paretorch.support.sharded import on_one_gpu


def sgd(parameters: list[nn.Parameter], lr: float, momentum: float, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """SGD with momentum."""
    fused = on_one_gpu(parameters)
    return torch.optim.SGD(
        parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, fused=fused, foreach=not fused
    )


def adam(parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Adam; on a GPU such that a CUDA graph can hold its step."""
    fused = on_one_gpu(parameters)
    return torch.optim.Adam(parameters, lr=lr, fused=fused, foreach=not fused, capturable=parameters[0].is_cuda)
