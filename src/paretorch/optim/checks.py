"""What a parameter group may contain, checked before any training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
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
    elif not (is_number(lr) and lr >= 0):
        raise ConfigError(f"{name}: lr must be at least 0, not {lr!r}.")
    if not (is_number(eps) and eps > 0):
        raise ConfigError(f"{name}: eps must be a positive number, not {eps!r}.")
    if not (is_number(decay) and decay >= 0):
        raise ConfigError(f"{name}: weight_decay must be at least 0, not {decay!r}.")
    if not (is_pair(group["betas"]) and all(0 <= beta < 1 for beta in group["betas"])):
        raise ConfigError(f"{name}: betas are two numbers in [0, 1), not {group['betas']!r}.")
    if group["differentiable"]:
        raise ConfigError(f"{name} updates in place and cannot be differentiated through: leave differentiable=False.")
    if group["foreach"] and group["fused"]:
        raise ConfigError(f"{name}: choose foreach=True or fused=True, not both.")
    if group["state_dtype"] not in (None, torch.float32, torch.float64, torch.bfloat16):
        raise ConfigError(f"{name}: state_dtype is None, float32, float64 or bfloat16, not {group['state_dtype']}.")


def is_number(value: Any) -> bool:
    """A finite real number (no tensor: the host would wait for it)."""
    return isinstance(value, Real) and math.isfinite(value)


def is_pair(value: Any) -> bool:
    """Two of them."""
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(is_number, value))
