"""PACT's activations (Choi et al., "PACT: Parameterized Clipping Activation for Quantized Neural Networks", 2018).

    y = ½(|u| − |u − α| + α), which is u clipped to [0, α];   Q(y) = round(y · (2^k − 1)/α) · α/(2^k − 1)
    ∂Q/∂u := 1{0 ≤ u < α},   ∂Q/∂α := 1{u ≥ α}

From the first step on, one α a layer, trained by the user's optimizer with a decay of its own.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from paretorch.core.attach.activations import OutputRelaxation, Spot
from paretorch.core.groups import Grouping
from paretorch.edits import QuantizeActivation
from paretorch.edits.quantize_activation import QuantizedActivation, clip, quantize_uniform
from paretorch.methods.precision.activations import learned_end
from paretorch.methods.precision.activations_fixed import GivenBits
from paretorch.support.checks import require_number


@dataclass(frozen=True, kw_only=True)
class PACTActivations(GivenBits):
    """Quantize the outputs of ReLUs to `bits` bits between 0 and a learned α.

    alpha: where α starts. alpha_decay: its weight decay, PACT's 2λ_α.
    """

    alpha: float = 8.0
    alpha_decay: float = 5e-4

    per_layer: ClassVar[frozenset[str]] = frozenset({"bits", "alpha", "alpha_decay"})

    def check(self) -> None:
        super().check()
        require_number("alpha", self.alpha, 0.0, 1e6, "give a positive number", above=True)
        require_number("alpha_decay", self.alpha_decay, 0.0, 1e6, "a weight decay is 0 or more")

    def quantizer(self, spot: Spot, grouping: Grouping) -> "_Clipped":
        return _Clipped(self, spot, grouping)


class _Clipped(OutputRelaxation):
    """The nearest of 2^k levels from 0 to α, straight through."""

    room: ClassVar[str] = "activations"
    steps: Tensor

    def __init__(self, method: PACTActivations, spot: Spot, grouping: Grouping) -> None:
        super().__init__(grouping, 0.0, spot.device)
        self.number, self.decay = float(method.bits), method.alpha_decay
        self.alpha = nn.Parameter(torch.tensor([method.alpha], dtype=torch.float32, device=spot.device))
        steps = torch.full(grouping.grid, 2**method.bits - 1, dtype=torch.int32, device=spot.device)
        self.register_buffer("steps", steps, persistent=False)

    def ends(self) -> tuple[Tensor, Tensor]:
        """0 and α."""
        high = learned_end(self.alpha)
        return torch.zeros_like(high), high

    def forward(self, u: Tensor) -> Tensor:
        low, high = self.ends()
        value = quantize_uniform(clip(u, low, high), low, high, self.steps.to(torch.float32), self.training)
        return value + (0.0 * self.grid()).to(u.dtype)  # a zero gradient for s, so that DDP sees it

    def plain(self, inner: nn.Module) -> nn.Module:
        with torch.no_grad():
            return QuantizedActivation(inner, self.steps.clone(), torch.stack(self.ends()))

    def edit(self, modules: tuple[str, ...]) -> QuantizeActivation:
        return QuantizeActivation(modules, tuple(self.steps.shape))

    def trained(self) -> list[tuple[nn.Parameter, float]]:
        return [(self.alpha, self.decay)]
