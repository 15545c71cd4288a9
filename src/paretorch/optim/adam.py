"""Two variants of Adam that converge: with a delay of one step, and with a schedule for ε.

Delayed Adam (thesis chapter 6, algorithm "Delayed Adam"): step sizes that do not depend on the current sample.

    m_t     = β₁ m_{t−1} + (1 − β₁) g_t
    η_t     = 1 / (√v_{t−1} + ε)
    w_{t+1} = w_t − α · η_t ⊙ m_t
    v_t     = β₂ v_{t−1} + (1 − β₂) g_t²

Adam can fail to converge because η_t and g_t are correlated. One step of delay is enough for the convergence rate of SGD
(theorem "dadamconv"). There is no bias correction, as in the thesis.

What differs from the printed algorithm: with v₀ = 0 and ε = 1e-8 the first step would be 1e8 times too long. A coordinate
without history (v_{t−1} = 0) uses its own v_t instead, so that its first step is at most α (1 − β₁)/√(1 − β₂).

Annealed Adam (thesis chapter 6, corollary 6.1): Adam with a schedule for ε has the convergence rate of SGD without a delay.

    m_t     = β₁ m_{t−1} + (1 − β₁) g_t
    v_t     = β₂ v_{t−1} + (1 − β₂) g_t²
    ε_t     = c · T^p₁ · t^p₂
    α_t     = α · ε_t / √T
    w_{t+1} = w_t − α_t · m_t / (√v_t + ε_t)

The bound O(1/√T) holds for p₁, p₂ ≥ 0 (the printed "> 0" would exclude its own example ε_t = √t) with p₁ + p₂ ≥ ½.
There is no bias correction, as in the thesis. What differs: t counts from 1, and a learning rate schedule, if there is
one, multiplies α in addition.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Unpack

from torch import Tensor

from paretorch.errors import ConfigError
from paretorch.optim.base import AdaptiveOptimizer, Group, Options, Params
from paretorch.optim.hyperparameters import Hyperparameters, Rule, Scalar, is_number, is_pair


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


class AnnealedAdam(AdaptiveOptimizer):
    """Adam whose ε grows during training, so that it becomes more like SGD and converges (thesis chapter 6).

    w ← w − α_t · m / (√v + ε_t) with ε_t = c T^p₁ t^p₂ and α_t = α ε_t/√T in step t.

    Args:
        params: parameters or groups, as for every torch optimizer.
        steps: T, the number of steps of the whole training.
        lr: α. It may be a tensor, and must be one if it changes inside a CUDA graph.
        betas: β₁ of the first moment and β₂ of the second moment.
        eps: c.
        powers: (p₁, p₂); the default (0, ½) is ε_t ∝ √t.
        weight_decay: λ; λw is added to the gradient.
        options: maximize, foreach, fused, capturable, state_dtype, seed (see `Options`).

    Example:
        >>> import torch
        >>> from paretorch.optim import AnnealedAdam
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = AnnealedAdam(model.parameters(), steps=1000, lr=0.1)
        >>> model(torch.ones(2, 4)).square().mean().backward()
        >>> optimizer.step()
        >>> optimizer.zero_grad()
    """

    rule = Rule(delayed=False, normalised=False)
    depends_on_step = True

    def __init__(
        self,
        params: Params,
        steps: int,
        lr: float | Tensor = 0.1,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1.0,
        powers: tuple[float, float] = (0.0, 0.5),
        weight_decay: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "steps": steps,
            "powers": powers,
        }
        super().__init__(params, defaults, options)

    def _check(self, group: Group) -> None:
        super()._check(group)
        if not (is_number(group["steps"]) and group["steps"] >= 1):
            raise ConfigError(f"AnnealedAdam: steps is the length of the training, at least 1, not {group['steps']!r}")
        if not (is_pair(group["powers"]) and min(group["powers"]) >= 0):
            raise ConfigError(f"AnnealedAdam: powers are two numbers of at least 0, not {group['powers']!r}")

    def _hyperparameters(self, group: Group, now: Scalar) -> Hyperparameters:
        constant = super()._hyperparameters(group, now)
        horizon, (p1, p2) = group["steps"], group["powers"]
        eps = constant.eps * horizon**p1 * now**p2
        return replace(constant, eps=eps, lr=constant.lr * eps / math.sqrt(horizon))
