"""What distinguishes the optimizers of this folder, as three switches, and the numbers of one step of one group."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

Scalar = float | Tensor


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

    @property
    def damping(self) -> float:
        """κ: Σ(κη)² stays in the range of fp32 for every ε, since κη ≤ 1e13. It is 1 unless ε < 1e-13."""
        eps = self.eps
        if isinstance(eps, Tensor):
            return 1.0
        return min(1.0, 2.0 ** math.floor(math.log2(eps * 1e13)))
