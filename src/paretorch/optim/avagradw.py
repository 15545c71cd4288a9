"""AvaGradW (thesis chapter 6): AvaGrad with decoupled weight decay, as AdamW is to Adam.

    w ← (1 − α λ) w       before the step of AvaGrad, whose gradient is the loss' alone

What differs from AvaGrad: the decay is part of neither m nor v, and so of neither η nor its norm. It is multiplied by α
but not by η, as in AdamW.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from paretorch.optim.base import AdaptiveOptimizer, Options, Params
from paretorch.optim.hyperparameters import Rule


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
