"""How the optimizers of this folder differ (`Rule`), and the hyperparameters of one parameter group, checked and resolved.

A user writes hyperparameters into `param_groups`, where schedulers change them. `check_group` refuses values that cannot
work; `Hyperparameters` holds what the kernels read during one step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from paretorch.errors import ConfigError

Scalar = float | Tensor
MIN_EPS_FP32 = 1e-24
"""A smaller ε makes no difference in fp32: the square root of the smallest positive v is 4e-23."""


@dataclass(frozen=True)
class Rule:
    """The variant of w ← w − α · η ⊙ m with η = 1/(√v + ε) that an optimizer computes."""

    delayed: bool = True
    """η uses v of the previous step, so that it does not depend on the current sample."""
    normalised: bool = True
    """η is divided by its root mean square over the whole network."""
    decoupled: bool = False
    """Weight decay shrinks the weights directly instead of being added to the gradient."""


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters of one group in one step. `lr` and `eps` may be tensors on the device, the rest are numbers."""

    lr: Scalar
    beta1: float
    beta2: float
    eps: Scalar
    weight_decay: float
    maximize: bool
    rule: Rule
    grad_scale: Tensor | None = None
    """The factor by which a gradient scaler multiplied the loss; the kernel divides by it."""
    found_inf: Tensor | None = None
    """Non-zero if that scaler found an infinite gradient; the kernel then changes nothing."""

    def representable_in(self, dtype: torch.dtype) -> Hyperparameters:
        """Return a copy whose ε, and κη computed from it, are not 0 in `dtype`."""
        if isinstance(self.eps, Tensor) or self.eps >= MIN_EPS_FP32 or dtype == torch.float64:
            return self
        return replace(self, eps=MIN_EPS_FP32)

    @property
    def eta_scale(self) -> float:
        """κ, such that κη ≤ 1e13 and Σ(κη)² does not overflow in fp32. It is 1 unless ε < 1e-13."""
        if isinstance(self.eps, Tensor):
            return 1.0
        return min(1.0, 2.0 ** math.floor(math.log2(self.eps * 1e13)))


def check_group(group: Mapping[str, Any], name: str) -> None:
    """Raise `ConfigError` if the parameter group of the optimizer `name` has a value that cannot work."""
    lr, eps, decay = group["lr"], group["eps"], group["weight_decay"]
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise ConfigError(f"{name}: a tensor lr has one element, not {lr.numel()}")
    elif not (is_number(lr) and lr >= 0):
        raise ConfigError(f"{name}: lr must be at least 0, not {lr!r}")
    if not (is_number(eps) and eps > 0):
        raise ConfigError(f"{name}: eps must be a positive number, not {eps!r}")
    if not (is_number(decay) and decay >= 0):
        raise ConfigError(f"{name}: weight_decay must be at least 0, not {decay!r}")
    if not (is_pair(group["betas"]) and all(0 <= beta < 1 for beta in group["betas"])):
        raise ConfigError(f"{name}: betas are two numbers in [0, 1), not {group['betas']!r}")
    if group["differentiable"]:
        raise ConfigError(f"{name} updates in place and cannot be differentiated through: use differentiable=False")
    if group["foreach"] and group["fused"]:
        raise ConfigError(f"{name}: choose foreach=True or fused=True, not both")
    if group["state_dtype"] not in (None, torch.float32, torch.float64, torch.bfloat16):
        raise ConfigError(f"{name}: state_dtype is None, float32, float64 or bfloat16, not {group['state_dtype']}")


def is_number(value: Any) -> bool:
    """Whether `value` is a finite real number. Tensors are not: reading one would make the host wait."""
    return isinstance(value, Real) and math.isfinite(value)


def is_pair(value: Any) -> bool:
    """Whether `value` is a list or tuple of two finite real numbers."""
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(is_number, value))
