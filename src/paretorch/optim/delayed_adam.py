"""Delayed Adam (thesis chapter 6, algorithm "Delayed Adam"): the step sizes do not see the current sample.

    m_t     = β₁ m_{t−1} + (1 − β₁) g_t
    η_t     = 1 / (√v_{t−1} + ε)
    w_{t+1} = w_t − α · η_t ⊙ m_t
    v_t     = β₂ v_{t−1} + (1 − β₂) g_t²

Adam can fail to converge because η_t and g_t are correlated; one step of delay suffices for the rate of SGD
(theorem "dadamconv"). There is no bias correction, as in the thesis.

What differs from the printed algorithm: with v₀ = 0 and ε = 1e-8 the first step would be 1e8 times too long. A coordinate
without history (v_{t−1} = 0) uses its own v_t instead, so that its first step is α (1 − β₁)/√(1 − β₂) at most.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from paretorch.optim.base import AdaptiveOptimizer, Options, Params
from paretorch.optim.rule import Rule


class DelayedAdam(AdaptiveOptimizer):
    """Adam whose step sizes come from the gradients before the current one.

    Args:
        params: parameters or groups, as for every torch optimizer.
        lr: α. A tensor is allowed, and needed to change it inside a CUDA graph.
        betas: β₁ of the momentum and β₂ of the second moment.
        eps: ε > 0; the smaller, the more adaptive.
        weight_decay: λ; λw is added to the gradient.
        options: maximize, foreach, fused, capturable, state_dtype, seed (see `Options`).
    """

    rule = Rule(normalised=False)

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        numbers = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, numbers, options)
