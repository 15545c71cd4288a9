"""The optimizers that decisions are trained by: torch's own, fused on one GPU; and drops of their rates."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from paretorch.errors import ConfigError
from paretorch.support.checks import require_number
from paretorch.support.sharded import is_sharded, on_one_gpu

_DROP = 0.1  # what a drop multiplies the rate by


def require_drops(drops: Sequence[float]) -> None:
    """Refuse what is no list of shares of the steps."""
    hint = "give shares of the steps, from 0 to 1, such as (0.5, 0.75)"
    if not isinstance(drops, list | tuple):
        raise ConfigError(f"drops={drops!r}: {hint}")
    for drop in drops:
        require_number("drops", drop, 0.0, 1.0, hint)


def drop_rate(optimizer: torch.optim.Optimizer | None, lr: float, done: Tensor, drops: Sequence[float]) -> None:
    """Give the optimizer the rate of this moment: `lr`, a tenth of it after each drop; done: the share of the steps so far."""
    if optimizer is None:
        return
    passed = torch.stack([(done >= drop).to(torch.float32) for drop in drops]).sum()
    rate = lr * torch.exp(passed * math.log(_DROP))
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].copy_(rate)
        else:
            group["lr"] = float(rate)


def sgd(
    parameters: list[nn.Parameter], lr: float, momentum: float, weight_decay: float = 0.0, *, drops: bool = False
) -> torch.optim.Optimizer:
    """SGD with momentum; drops: its rate changes, so that on a GPU, where a CUDA graph may hold its step, it is a tensor."""
    fused = on_one_gpu(parameters)
    return torch.optim.SGD(
        parameters,
        lr=torch.full((), lr, dtype=torch.float32, device=parameters[0].device) if drops and fused else lr,
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
