"""How the kernels for GPUs compute a relaxation (see `paretorch.core.attach.fused`)."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor


class Rows(Protocol):
    """Coefficients of relaxations whose rows of weights share a decision. Tensors have all rows of all weights, one after the other."""

    def forward(self) -> tuple[Tensor, Tensor | None]:
        """The coefficients of W, and the largest |w| allowed, if there is one."""

    def backward(self) -> Tensor:
        """The coefficients of the gradient."""

    def gradients(self, sums: Tensor, squares: Tensor | None) -> list[Tensor]:
        """The gradients of the decisions, of each in turn.

        Args:
            sums: Σ ∂L/∂v (v − w) of each row, or Σ ∂L/∂W v of a gate.
            squares: Σ (∂L/∂v)² of each row, if the form asks for it.
        """


class Form(NamedTuple):
    """A relaxation v = f(w, s) of several weights.

    kind: Of precision "noise", w + 2^k σ(s) ε; "steps", Δ round(w/Δ); "grid", 2^k Q(w/2^k, p). Of sparsity "gate", c σ(β(s + τ)) w;
        "open", c 1{s + τ > 0} w.
    rows: The coefficients, if rows of weights share a decision.
    factor: c of a gate with a decision per weight.
    scalars: β, τ and γ of such a gate; `lags`: whether its gradient is at the temperature γ.
    is_followed: Whether the gradient of a gate's decision is c w ∂L/∂W itself.
    powers: k of each weight's grid.
    keys: Of the noise of each weight; `step`: the step counter.
    levels: The bits of each weight on a grid; they broadcast against it.
    clips: Whether weights have a largest magnitude.
    squares: Whether `rows` asks for Σ (∂L/∂v)².
    """

    kind: str
    rows: Rows | None = None
    factor: float = 1.0
    scalars: Tensor | None = None
    lags: bool = True
    is_followed: bool = False
    powers: Sequence[Tensor] = ()
    keys: Sequence[int] = ()
    step: Tensor | None = None
    levels: Sequence[Tensor] = ()
    clips: bool = False
    squares: bool = False
