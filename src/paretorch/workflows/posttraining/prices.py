"""One price for the network: λ, in output distance per bit, and the bytes that it gives.

A layer of sensitivity c pays λ / c per bit, in units of its own error. Its bits at a price are estimated from a sample of its rows, so
that the price of a budget is found before anything is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from paretorch.workflows.posttraining.layers import Layer
from paretorch.workflows.posttraining.solver import choose_steps, estimate_lengths

_SAMPLE = 1 << 15  # weights of a layer by which its bits are estimated
_LEAST, _MOST = -70.0, 20.0  # log2 of the price
LEAST_PRICE = 2.0 ** (_LEAST + 1)
_HALVINGS = 24
_LEAST_SHARE = 1e-3  # of the median sensitivity


@dataclass(frozen=True, eq=False)
class Priced:
    """A layer with all that decides its steps and bits.

    Args:
        sensitivity: c, output distance per unit of error.
        ridge: What other owners of the weight add to the diagonal of H, in units of its error.
        scale: U_jj² by column, of the dense network.
        gains: What the batch norm behind the layer multiplies each row's output by, (groups, rows, 1); ones if there is none.
        order: The order in which columns are rounded; empty if the layer is rounded by its weights alone.
    """

    layer: Layer
    sensitivity: float
    ridge: float
    scale: Tensor
    order: Tensor
    gains: Tensor
    _known: dict[int, float] = field(default_factory=dict)

    @property
    def alone(self) -> bool:
        """Whether the layer is rounded by its weights alone."""
        return self.order.numel() == 0

    def steps(self, price: float) -> Tensor:
        return choose_steps(self.layer.matrix(), self.scale, self.gains, self.layer.taps, price / self.sensitivity)

    def bits(self, price: float) -> float:
        """Return about the bits of the layer at a price, interpolated between half octaves of it."""
        place = 2.0 * math.log2(price)
        low = math.floor(place)
        return self._bits_at(low) * (low + 1 - place) + self._bits_at(low + 1) * (place - low)

    def _bits_at(self, half_octaves: int) -> float:
        if half_octaves not in self._known:
            matrix, price = self.layer.matrix() * self.gains, math.exp2(half_octaves / 2)
            steps = self.steps(price)
            every = max(1, matrix.numel() // _SAMPLE) if matrix.shape[0] == 1 else 1
            sample, felt = matrix[:, ::every], (steps * self.gains)[:, ::every]
            lengths = estimate_lengths(sample, self.scale, felt, price / self.sensitivity)
            self._known[half_octaves] = lengths.total * matrix.shape[1] / sample.shape[1] + step_bits(steps)
        return self._known[half_octaves]


def step_bits(steps: Tensor) -> float:
    """Return about the bits of the steps in the file."""
    return float(8 * steps.unique().numel() + 6 * steps.numel())


def find_price(layers: Sequence[Priced], bits: float, low: float = _LEAST, high: float = _MOST) -> float:
    """Return the least price, within 2^low to 2^high, at which the layers take no more than so many bits, about."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if sum(layer.bits(math.exp2(middle)) for layer in layers) > bits:
            low = middle
        else:
            high = middle
        if high - low < 0.005:
            break
    return math.exp2(high)


def near(price: float, factor: float) -> tuple[float, float]:
    """Return the bounds of a search around a price."""
    middle, span = math.log2(price), math.log2(factor)
    return middle - span, middle + span


def floored(layers: Sequence[Priced], powers: Sequence[Tensor]) -> tuple[Priced, ...]:
    """Return the layers with sensitivities not far below the median of all, per unit of relative error.

    A layer that seems not to matter on few batches may matter on other data.

    Args:
        powers: The mean square of each layer's outputs.
    """
    power = torch.stack([one.detach().float().cpu() for one in powers]).clamp_min(1e-30)
    relative = torch.tensor([layer.sensitivity for layer in layers]) * power
    raised = torch.maximum(relative, _LEAST_SHARE * relative.median()).clamp_min(1e-30) / power
    return tuple(replace(layer, sensitivity=c) for layer, c in zip(layers, raised.tolist(), strict=True))
