"""What distinguishes the optimizers of this folder, as three switches, and the numbers of one step of one group."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Scalar = float | Tensor
_LEAST_EPS = 1e-24
"""In fp32 no ε below it can be told from it: the root of the least v above 0 is 4e-23."""


@dataclass(frozen=True)
class Rule:
    """w ← w − α · η ⊙ m with η = 1/(√v + ε); the switches say which v, which scale and where the decay goes."""

    delayed: bool = True
    """η reads v of the previous step, so that it does not depend on the current sample."""
    normalised: bool = True
    """η is divided by its root mean square over the whole network."""
    decoupled: bool = False
    """Weight decay shrinks the weights directly instead of entering the gradient."""


@dataclass(frozen=True)
class Hyper:
    """The numbers of one group for one step. `lr` and `eps` may be device tensors, everything else is a Python number."""

    lr: Scalar
    beta1: float
    beta2: float
    eps: Scalar
    weight_decay: float
    maximize: bool
    rule: Rule
    grad_scale: Tensor | None = None
    """By which a gradient scaler has multiplied the loss; the kernel divides by it."""
    found_inf: Tensor | None = None
    """Non-zero where that scaler found an infinity; the kernel then leaves everything as it is."""

    def within(self, dtype: torch.dtype) -> Hyper:
        """For steps that are computed in this dtype: an ε that would be 0 there, or whose κη would, is a little more."""
        if isinstance(self.eps, Tensor) or self.eps >= _LEAST_EPS or dtype == torch.float64:
            return self
        return replace(self, eps=_LEAST_EPS)

    @property
    def damping(self) -> float:
        """κ: Σ(κη)² stays in the range of fp32 for every ε, since κη ≤ 1e13. It is 1 unless ε < 1e-13."""
        eps = self.eps
        if isinstance(eps, Tensor):
            return 1.0
        return min(1.0, 2.0 ** math.floor(math.log2(eps * 1e13)))
