"""How much the network's output changes per unit of error in one layer, measured by forward passes.

Each layer in turn is rounded coarsely, alone. The distance of the outputs, divided by the change of the layer's own outputs, is
its sensitivity c: c · tr(D H Dᵀ) is then in the same unit for every layer, and adds up as long as the changes are small. A weight
with further owners (an embedding tied to a head) is changed in each place apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paretorch.support.eval_mode import in_eval
from paretorch.support.inputs import ModelCall
from paretorch.workflows.posttraining.calibration import Distance, distance_to, outputs
from paretorch.workflows.posttraining.layers import Layer, output_rows
from paretorch.workflows.posttraining.moments import inputs_read

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
