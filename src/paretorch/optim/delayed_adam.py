"""Delayed Adam (thesis chapter 6, algorithm "Delayed Adam"): step sizes that do not depend on the current sample.

    m_t     = β₁ m_{t−1} + (1 − β₁) g_t
    η_t     = 1 / (√v_{t−1} + ε)
    w_{t+1} = w_t − α · η_t ⊙ m_t
    v_t     = β₂ v_{t−1} + (1 − β₂) g_t²

Adam can fail to converge because η_t and g_t are correlated. One step of delay is enough for the convergence rate of SGD
(theorem "dadamconv"). There is no bias correction, as in the thesis.

What differs from the printed algorithm: with v₀ = 0 and ε = 1e-8 the first step would be 1e8 times too long. A coordinate
without history (v_{t−1} = 0) uses its own v_t instead, so that its first step is at most α (1 − β₁)/√(1 − β₂).
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from paretorch.optim.base import AdaptiveOptimizer, Options, Params
from paretorch.optim.hyperparameters import Rule


class DelayedAdam(AdaptiveOptimizer):
    """Adam whose step sizes come from earlier gradients only, so that it converges (thesis chapter 6).

    w ← w − α · η ⊙ m with η = 1/(√v + ε), where v is that of the previous step.

    Args:
        params: parameters or groups, as for every torch optimizer.
        lr: α. It may be a tensor, and must be one if it changes inside a CUDA graph.
        betas: β₁ of the first moment and β₂ of the second moment.
        eps: ε > 0; the smaller, the more adaptive.
        weight_decay: λ; λw is added to the gradient.
        options: maximize, foreach, fused, capturable, state_dtype, seed (see `Options`).

    Example:
        >>> import torch
        >>> from paretorch import DelayedAdam
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = DelayedAdam(model.parameters(), lr=1e-3)
        >>> model(torch.ones(2, 4)).square().mean().backward()
        >>> optimizer.step()
        >>> optimizer.zero_grad()
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
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, options)
