"""AvaGrad (thesis chapter 6, algorithm "AvaGrad"): adaptive steps whose size does not depend on ε; and AvaGradW.

    m_t     = β₁ m_{t−1} + (1 − β₁) g_t
    η_t     = 1 / (√v_{t−1} + ε)
    w_{t+1} = w_t − α · η_t / ‖η_t / √d‖₂ ⊙ m_t
    v_t     = β₂ v_{t−1} + (1 − β₂) g_t²

What differs from the printed algorithm, which leaves these open:

* The first step. v₀ = 0 would make η₁ = 1/ε everywhere and the first step a plain gradient step. A coordinate without
  history (v_{t−1} = 0) uses its own v_t instead of v_{t−1}. So η₁ = η₂, and at ε = 1e-8 the first step is no longer than
  those that follow.
* Which coordinates count. The norm and d are over the coordinates with v_{t−1} > 0, of all parameters of all groups.
  Weights that never had a gradient (pruned ones, unused rows of an embedding) would have η = 1/ε and dominate the norm.
  As long as the network has no history at all, v₁ replaces v₀ here too. Weight decay is part of the gradient, so with it
  such weights do count; in AvaGradW they do not.
* The norm is that of η in the same step. (The author's code divides by the norm of the previous step.)

AvaGradW (thesis chapter 6) is AvaGrad with decoupled weight decay, as AdamW is to Adam.

    w ← (1 − α λ) w       before the step of AvaGrad, whose gradient is the loss' alone

What differs from AvaGrad: the decay is part of neither m nor v, and so of neither η nor its norm. It is multiplied by α
but not by η, as in AdamW.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from paretorch.optim.base import AdaptiveOptimizer, Options, Params
from paretorch.optim.hyperparameters import Rule


class AvaGrad(AdaptiveOptimizer):
    """Adam with delayed, normalised step sizes: α and ε can be tuned independently (thesis chapter 6).

    w ← w − α · η / ‖η/√d‖₂ ⊙ m with η = 1/(√v + ε), where v is that of the previous step and the norm is over the
    parameters of all groups. A large ε (0.1 or more) gives SGD with momentum, with α = SGD's rate / (1 − β₁). A small ε
    (1e-8) adapts each coordinate, as Adam does. In the thesis the best α is the same for all ε.

    Args:
        params: parameters or groups, as for every torch optimizer.
        lr: α. It may be a tensor, and must be one if it changes inside a CUDA graph.
        betas: β₁ of the first moment and β₂ of the second moment.
        eps: ε > 0; the smaller, the more adaptive.
        weight_decay: λ; λw is added to the gradient.
        options: maximize, foreach, fused, capturable, state_dtype, seed (see `Options`).

    Example:
        >>> import torch
        >>> from paretorch import AvaGrad
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = AvaGrad(model.parameters(), lr=0.1, weight_decay=5e-4)
        >>> model(torch.ones(2, 4)).square().mean().backward()
        >>> optimizer.step()
        >>> optimizer.zero_grad()
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
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, options)


class AvaGradW(AdaptiveOptimizer):
    """AvaGrad with decoupled weight decay (thesis chapter 6).

    w ← (1 − αλ) w before each step of `AvaGrad`, whose gradient is that of the loss alone.

    Args:
        params: parameters or groups, as for every torch optimizer.
        lr: α. It may be a tensor, and must be one if it changes inside a CUDA graph.
        betas: β₁ of the first moment and β₂ of the second moment.
        eps: ε > 0; the smaller, the more adaptive.
        weight_decay: λ; each step multiplies the weights by 1 − αλ.
        options: maximize, foreach, fused, capturable, state_dtype, seed (see `Options`).

    Example:
        >>> import torch
        >>> from paretorch import AvaGradW
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = AvaGradW(model.parameters(), lr=0.1, weight_decay=0.01)
        >>> model(torch.ones(2, 4)).square().mean().backward()
        >>> optimizer.step()
        >>> optimizer.zero_grad()
    """

    rule = Rule(decoupled=True)

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.1,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 0.1,
        weight_decay: float = 5e-4,
        **options: Unpack[Options],
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, options)
