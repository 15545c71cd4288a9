"""What a parameter group may contain, checked before any training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from paretorch.errors import ConfigError


def check_group(group: Mapping[str, Any], name: str) -> None:
    """Refuse values that cannot work, in one sentence that says which would."""
    lr, eps, decay = group["lr"], group["eps"], group["weight_decay"]
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise ConfigError(f"{name}: a tensor lr has one element, not {lr.numel()}.")
    elif not (math.isfinite(lr) and lr >= 0):
        raise ConfigError(f"{name}: lr must be at least 0, not {lr}.")
    if isinstance(eps, Tensor) or not (math.isfinite(eps) and eps > 0):
        raise ConfigError(f"{name}: eps must be a positive number, not {eps}.")
    if not (math.isfinite(decay) and decay >= 0):
        raise ConfigError(f"{name}: weight_decay must be at least 0, not {decay}.")
    betas = group["betas"]
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ConfigError(f"{name}: betas are two numbers in [0, 1), not {betas}.")
    if group["differentiable"]:
        raise ConfigError(f"{name} updates in place and cannot be differentiated through: leave differentiable=False.")
    if group["foreach"] and group["fused"]:
        raise ConfigError(f"{name}: choose foreach=True or fused=True, not both.")
    if group["state_dtype"] not in (None, torch.float32, torch.float64, torch.bfloat16):
        raise ConfigError(f"{name}: state_dtype is None, float32, float64 or bfloat16, not {group['state_dtype']}.")
