"""What a layer's error and bits cost: its sensitivity, measured by forward passes, and one price λ for the whole network.

Each layer in turn is rounded coarsely, alone. The distance of the outputs, divided by the change of the layer's own outputs, is
its sensitivity c: c · tr(D H Dᵀ) is then in the same unit for every layer, and adds up as long as the changes are small. A weight
with further owners (an embedding tied to a head) is changed in each place apart.

λ is in output distance per bit. A layer of sensitivity c pays λ / c per bit, in units of its own error. Its bits at a price are
estimated from a sample of its rows, so that the price of a budget is found before anything is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from paretorch.support.eval_mode import in_eval
from paretorch.support.inputs import ModelCall
from paretorch.workflows.posttraining.calibration import Distance, distance_to, inputs_read, outputs
from paretorch.workflows.posttraining.layers import Layer, output_rows
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
            sample, weighted = matrix[:, ::every], (steps * self.gains)[:, ::every]
            lengths = estimate_lengths(sample, self.scale, weighted, price / self.sensitivity)
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


_STEP = 0.6  # of the standard deviation of a row: coarse enough to be seen, fine enough to be in proportion


@dataclass(frozen=True)
class Sensitivity:
    """Output distance per unit of error: `inputs` for the change of outputs, `weights` for a change of the weights alone."""

    inputs: float
    weights: float


def measure(
    model: nn.Module,
    layers: Sequence[Layer],
    batches: Sequence[ModelCall],
    gains: Mapping[Layer, Tensor],
    distance: Distance,
    progress: Callable[[int], None],
) -> dict[Layer, Sensitivity]:
    """Return the sensitivity of each layer; the model is as before.

    Args:
        gains: By which the error of each row counts, (groups, rows, 1).
    """
    with in_eval(model):
        reference = outputs(model, batches)
        found = {}
        for i, layer in enumerate(layers):
            found[layer] = _of_layer(model, layer, gains[layer], batches, reference, distance)
            progress(i + 1)
    return found


def _of_layer(
    model: nn.Module,
    layer: Layer,
    gains: Tensor,
    batches: Sequence[ModelCall],
    reference: Sequence[Tensor],
    distance: Distance,
) -> Sensitivity:
    rough = _rough(layer.matrix())
    change = (rough - layer.matrix()) * gains
    readers = [(reader, _attribute(reader, layer)) for reader in layer.readers]
    inputs = weights = 0.0
    errors: list[Tensor] = []

    def add(layer: Layer, module: nn.Module, rows: Tensor) -> None:
        errors.append(output_rows(change, rows).square().sum(1).mean())

    if readers:
        with _replaced(readers, layer.tensor(rough)), inputs_read([layer], add):
            found = distance_to(outputs(model, batches), reference, distance)
        inputs = found / max(float(torch.stack(errors).mean()), 1e-30) if errors else 0.0
    if layer.others or not errors:
        with _replaced(layer.others or readers, layer.tensor(rough)):
            found = distance_to(outputs(model, batches), reference, distance)
        weights = found / max(float(change.square().sum()), 1e-30)
    return Sensitivity(inputs, weights)


def _rough(matrix: Tensor) -> Tensor:
    steps = _STEP * matrix.std(2, keepdim=True, correction=0).clamp_min(1e-30)
    return (matrix / steps).round() * steps


def _attribute(module: nn.Module, layer: Layer) -> str:
    return next(name for name, parameter in module._parameters.items() if parameter is layer.weight)


@contextmanager
def _replaced(places: Sequence[tuple[nn.Module, str]], values: Tensor) -> Iterator[None]:
    """Inside, these modules have other weights; a tied weight elsewhere stays as it is."""
    before = [module._parameters[attribute] for module, attribute in places]
    other = nn.Parameter(values, requires_grad=False)
    try:
        for module, attribute in places:
            module._parameters[attribute] = other
        yield
    finally:
        for (module, attribute), parameter in zip(places, before, strict=True):
            module._parameters[attribute] = parameter
