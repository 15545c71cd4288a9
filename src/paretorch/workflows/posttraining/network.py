"""All layers of a network, rounded at one price per bit.

Layers are rounded in the order in which they run, a stage of them at a time: the inputs of a stage are those that the rounded layers
before it give. The price is found for a number of bits before, and corrected when the bits of a stage are known.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from paretorch.errors import ConfigError
from paretorch.support.inputs import ModelCall
from paretorch.workflows.posttraining import norms
from paretorch.workflows.posttraining.calibration import Distance, Moments, collect, execution_order, stages
from paretorch.workflows.posttraining.layers import Layer, find_layers
from paretorch.workflows.posttraining.sensitivity import (
    LEAST_PRICE,
    Priced,
    Sensitivity,
    find_price,
    floored,
    measure,
    near,
    step_bits,
)
from paretorch.workflows.posttraining.solver import factorize, fit_lengths, identity, measure_scale, round_matrix

Progress = Callable[[str, int, int], None]
DAMPING = 0.01  # of the mean diagonal of H
_STAGES = 12
_SENSITIVITY_SHARE = 8  # one in so many batches measures sensitivity
_CORRECTION = 1.5  # by which the price may change between stages


@dataclass(frozen=True, eq=False)
class Known:
    """What is measured of the dense network once.

    Args:
        layers: In the order in which they run.
        once: The names of those that run once per forward pass.
        outputs: Means and squares of their outputs; none for those that are rounded by their weights alone.
        norms: Names of the batch norms that read them.
    """

    dense: nn.Module
    batches: Sequence[ModelCall]
    layers: tuple[Priced, ...]
    once: set[str]
    outputs: dict[str, norms.Outputs]
    norms: dict[str, str]


@torch.no_grad()
def look_at(
    dense: nn.Module, batches: Sequence[ModelCall], layers: Sequence[Layer], distance: Distance, progress: Progress
) -> Known:
    """Measure sensitivities and second moments of the dense network."""
    ordered, once = execution_order(dense, batches[0], layers)
    readers = norms.find_norms(dense, ordered, batches[0])
    few = batches[: max(1, len(batches) // _SENSITIVITY_SHARE)]
    total = len(ordered)
    gains = {layer: norms.gains(readers.get(layer), layer.matrix()) for layer in ordered}
    sensitivities = measure(dense, ordered, few, gains, distance, lambda i: progress("sensitivity", i, total))
    outputs: dict[str, norms.Outputs] = {}
    priced: list[Priced] = []
    powers: list[Tensor] = []
    for stage in stages(ordered, 1):
        moments = collect(dense, batches, stage, once)
        for layer in stage:
            found, matrix = moments.pop(layer, None), layer.matrix()
            priced.append(_priced(layer, sensitivities[layer], found, gains[layer]))
            if found is not None:
                outputs[layer.name] = norms.Outputs(found.output_mean(matrix), found.output_square(matrix))
            felt = gains[layer].flatten().square()
            powers.append((outputs[layer.name].square * felt).sum() if found is not None else matrix.square().sum())
            progress("curvature", len(priced), total)
    names = {module: name for name, module in dense.named_modules()}
    followed = {layer.name: names[norm] for layer, norm in readers.items()}
    return Known(dense, batches, floored(priced, powers), once, outputs, followed)


def _priced(layer: Layer, sensitivity: Sensitivity, moments: Moments | None, gains: Tensor) -> Priced:
    if moments is None or sensitivity.inputs == 0.0:
        curvature = identity(layer.matrix())
        return Priced(layer, sensitivity.weights, 0.0, curvature.scale, curvature.order, gains)
    ridge = sensitivity.weights / sensitivity.inputs
    scale, order = measure_scale(moments.hessian, DAMPING, ridge)
    return Priced(layer, sensitivity.inputs, ridge, scale, order, gains)


@dataclass(frozen=True, eq=False)
class Rounded:
    """A rounded copy of the network, its steps by the name of the weight, and the price at the end.

    Args:
        finest: Whether no bits could make it finer.
    """

    model: nn.Module
    steps: dict[str, Tensor]
    price: float
    finest: bool


@torch.no_grad()
def round_network(known: Known, bits: float, vectors: bool, progress: Progress) -> Rounded:
    """Round all layers to about so many bits, and vectors to bfloat16 if `vectors`."""
    model = copy.deepcopy(known.dense)
    modules = dict(model.named_modules())
    own = {layer.name: layer for layer in find_layers(model, _any)}
    priced = {layer.layer.name: layer for layer in known.layers}
    price = start = find_price(known.layers, bits)
    steps: dict[str, Tensor] = {}
    used = expected = 0.0
    for stage in stages([own[name] for name in priced], _STAGES):
        moments = collect(model, known.batches, stage, known.once)
        for layer in stage:
            one, found = priced[layer.name], moments.pop(layer, None)
            rounded, steps[layer.name], spent = _round_layer(one, found, price)
            layer.weight.copy_(layer.tensor(rounded))
            if found is not None:
                norm = modules.get(known.norms.get(layer.name, ""))
                _correct(layer, rounded, found, known.outputs[layer.name], norm)
            used, expected = used + spent, expected + one.bits(price)
            progress("rounding", len(steps), len(priced))
        if rest := [one for name, one in priced.items() if name not in steps]:
            left = (bits - used) * expected / max(used, 1.0)
            price = find_price(rest, left, *near(start, _CORRECTION))
    norms.correct_rest(known.dense, model, known.batches, set(known.norms.values()))
    if vectors:
        norms.round_vectors(model)
    if not all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values() if tensor.is_floating_point()):
        raise ConfigError("The rounded network holds NaN or infinity, as the given one does: repair that first")
    return Rounded(model, {name: own[name].shaped(found) for name, found in steps.items()}, price, start < LEAST_PRICE)


def _any(name: str, module: nn.Module) -> bool:
    return True


def _correct(layer: Layer, rounded: Tensor, moments: Moments, dense: norms.Outputs, norm: nn.Module | None) -> None:
    norms.correct(layer, rounded, moments, dense, norm if isinstance(norm, _BatchNorm) else None)


def _round_layer(one: Priced, moments: Moments | None, price: float) -> tuple[Tensor, Tensor, float]:
    """Return the rounded weights, their steps, and their bits."""
    matrix, steps = one.layer.matrix(), one.steps(price)
    if moments is None or one.alone:
        curvature = identity(matrix)
    else:
        curvature = factorize(moments.hessian, DAMPING, one.ridge, one.order)
    codes = round_matrix(matrix * one.gains, curvature, steps * one.gains, price / one.sensitivity)
    return codes * steps, steps, fit_lengths(codes).total + step_bits(steps)
