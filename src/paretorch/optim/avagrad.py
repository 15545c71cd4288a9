"""AvaGrad (thesis chapter 6, algorithm "AvaGrad"): adaptive steps whose size does not depend on ε.

    m_t     = β₁ m_{t−1} + (1 − β₁) g_t
    η_t     = 1 / (√v_{t−1} + ε)
    w_{t+1} = w_t − α · η_t / ‖η_t / √d‖₂ ⊙ m_t
    v_t     = β₂ v_{t−1} + (1 − β₂) g_t²

What differs from the printed algorithm, which leaves these open:

* First-step rule. v₀ = 0 would make η₁ = 1/ε everywhere and the first step a plain gradient step. A coordinate without
  history (v_{t−1} = 0) uses its own v_t in place of v_{t−1}; so η₁ = η₂, and at ε = 1e-8 no step is longer than
  those that follow.
* Who counts. The norm and d are over the coordinates with v_{t−1} > 0 of all parameters of all groups. Weights that
  never had a gradient (pruned ones, unused rows of an embedding) would have η = 1/ε and drown all others. While the
  network has no history at all, v_1 takes the place of v_0 here too. Weight decay is part of the gradient, so with it
  such weights do count; in AvaGradW they do not.
* The norm belongs to the η of the same step. (The author's code divides by the norm of the step before.)
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from paretorch.optim.base import AdaptiveOptimizer, Options, Params
from paretorch.optim.rule import Rule


class AvaGrad(AdaptiveOptimizer):
    """Adam with delayed, normalised step sizes: tune α alone, ε chooses between adaptive and SGD-like.

    With large ε (0.1 and more) it is SGD with momentum, α = SGD's rate / (1 − β₁); with small ε (1e-8) it adapts each
    coordinate as Adam does. The thesis finds one best α for all ε. Parameters of every group enter one norm.

    Args:
        params: parameters or groups, as for every torch optimizer.
        lr: α. A tensor is allowed, and needed to change it inside a CUDA graph.
        betas: β₁ of the momentum and β₂ of the second moment.
        eps: ε > 0; the smaller, the more adaptive.
        weight_decay: λ; λw is added to the gradient.
        options: maximize, foreach, fused, capturable, state_dtype, seed (see `Options`).
    """

    rule = Rule()

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.1,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 0.1,
        weight_decay: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        numbers = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, numbers, options)
