"""`post_train`: a trained network into a file of so many bytes, by forward passes alone.

All layers are rounded at one price per bit, in the order in which they run, a stage of them at a time: the inputs of a stage are
those that the rounded layers before it give. The price is found for a number of bits before, and corrected when the bits of a
stage are known.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from paretorch.deploy import encoded_size
from paretorch.deploy.plain import copied, plain
from paretorch.edits import forget_scales
from paretorch.errors import ConfigError
from paretorch.support.checks import require_count
from paretorch.support.eval_mode import in_eval
from paretorch.support.inputs import ModelCall
from paretorch.support.text import dense_bytes, parse_bytes
from paretorch.workflows.posttraining import norms
from paretorch.workflows.posttraining.calibration import (
    Distance,
    Moments,
    choose_distance,
    collect,
    distance_to,
    execution_order,
    outputs,
    read_batches,
    stages,
    try_run,
)
from paretorch.workflows.posttraining.layers import Layer, find_layers
from paretorch.workflows.posttraining.norms import round_vectors
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
            gain = gains[layer].flatten().square()
            powers.append((outputs[layer.name].square * gain).sum() if found is not None else matrix.square().sum())
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


Meter = Callable[[nn.Module], int]
_AIM = 0.988  # of the budget
_FITS = 0.97  # of the budget: a smaller file is tried again with more bits
_RUNS = 8  # one or two are enough but for small networks
_LEAST_BITS = 0.05  # per weight: below it nothing is left of a layer


@dataclass(frozen=True, eq=False)
class PostTrained:
    """What `post_train` returns.

    Args:
        model: The rounded network, a plain module in eval mode.
        steps: The step of each rounded weight by its name, in a shape that broadcasts with it: weight / step is whole.
        size: Bytes of the file that `paretorch.save` writes.
        price: The output distance for which the last bit was bought.
    """

    model: nn.Module
    steps: Mapping[str, Tensor]
    size: int
    price: float


def file_size(model: nn.Module) -> int:
    """Return the bytes of the file that `paretorch.save` writes."""
    return encoded_size(model.state_dict(), model)


def post_train(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    budget: int | str,
    most_batches: int = 64,
    include: Any = None,
    exclude: Any = (),
    distance: Distance | None = None,
    meter: Meter = file_size,
    progress: Progress | None = None,
) -> PostTrained:
    """Round a trained network to a byte budget without labels and without training.

    Zeros, bits and steps of all weights follow from one price per bit, by forward passes on the batches. The given model
    stays as it is.

    Args:
        batches: Inputs: a tensor each, a tuple (positional arguments) or a dict (named arguments); labels that follow are left out. A
            few hundred examples suffice.
        budget: Bytes of the saved file, as a number or as text like "4 MB" or "1/10" of the dense network. The file takes 0.97 to 1.00 of it.
        most_batches: How many batches are read.
        include: Which weights are rounded, as in `compress`; all weights of linear, convolutional, recurrent and embedding layers if None.
        exclude: Weights that stay as they are.
        distance: From two outputs to a scalar; KL divergence for logits, else the relative squared error, if None.
        meter: Bytes of a rounded network, if it is to be saved in another way.
        progress: Called with the phase, the layers done, and all layers.

    >>> import torch
    >>> network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    >>> found = post_train(network, [torch.randn(32, 64) for _ in range(4)], budget=3000)
    >>> 2900 <= found.size <= 3000
    True
    """
    require_count("most_batches", most_batches, 1, "read at least one batch")
    own = plain(model, "post_train")
    limit = parse_bytes(budget, lambda: dense_bytes(own))
    dense = copied(own, "post_train").requires_grad_(False)
    layers = _layers_of(dense, include, exclude)
    forget_scales(dense, {layer.name for layer in layers})
    given = read_batches(batches, most_batches, dense, layers[0].weight.device)
    with in_eval(dense):
        first = try_run(dense, given[0])
    rounded, exact = (_bytes_beside(dense, layers, meter, vectors) for vectors in (True, False))
    least = rounded + int(_LEAST_BITS / 8 * sum(layer.weight.numel() for layer in layers))
    if limit < least:
        raise ConfigError(f"budget={limit}: {rounded} bytes go to what is not rounded; allow at least {least}")
    tell = progress or (lambda phase, done, total: None)
    distance = distance or choose_distance(first)
    known = look_at(dense, given, layers, distance, tell)
    price = find_price(known.layers, 8 * (_AIM * limit - rounded))
    vectors = exact > limit or _cost_of_vectors(known, distance) <= price * 8 * (exact - rounded)
    found = _to_budget(known, limit, rounded if vectors else exact, vectors, meter, tell)
    for parameter, before in zip(found.model.parameters(), own.parameters(), strict=True):
        parameter.requires_grad_(before.requires_grad)
    return found


def _layers_of(dense: nn.Module, include: Any, exclude: Any) -> list[Layer]:
    layers = find_layers(dense, include, exclude)
    if not layers:
        raise ConfigError(
            "post_train found no weight to round: give a network with linear, convolutional or embedding layers"
        )
    for layer in layers:
        if not bool(layer.weight.isfinite().all()):
            raise ConfigError(f"{layer.name} holds NaN or infinity: repair the network first")
    return layers


def _bytes_beside(dense: nn.Module, layers: list[Layer], meter: Meter, vectors: bool) -> int:
    """Return the bytes of everything but the weights to be rounded."""
    names = {layer.name for layer in layers}
    empty = copy.deepcopy(dense)
    if vectors:
        round_vectors(empty)
    with torch.no_grad():
        for layer in find_layers(empty, lambda name, module: True):
            if layer.name in names:
                layer.weight.zero_()
    return meter(empty)


def _cost_of_vectors(known: Known, distance: Distance) -> float:
    """Return the output distance that rounding norms and biases to bfloat16 costs."""
    changed = copy.deepcopy(known.dense)
    round_vectors(changed)
    with in_eval(changed), in_eval(known.dense):
        few = known.batches[:1]
        return distance_to(outputs(changed, few), outputs(known.dense, few), distance)


def _to_budget(known: Known, limit: int, rest: int, vectors: bool, meter: Meter, progress: Progress) -> PostTrained:
    """Round, measure the file, and correct the number of bits until the file fits."""
    best: tuple[int, Rounded] | None = None
    bits, low, high = 8 * (_AIM * limit - rest), 0.0, math.inf
    for i in range(_RUNS):
        found = round_network(known, bits, vectors, progress)
        size = meter(found.model)
        if size <= limit and (best is None or size > best[0]):
            best = (size, found)
        if _FITS * limit <= size <= limit or (size <= limit and found.finest):
            break
        low, high = (max(low, bits), high) if size <= limit else (low, min(high, bits))
        bits *= (_AIM * limit - rest) / max(size - rest, 1)
        if not low < bits < high:  # tables and maps do not shrink in proportion
            bits = (low + high) / 2 if high < math.inf else 2 * low
        if best is None:
            bits *= _AIM**i
    if best is None:
        raise ConfigError(f"budget={limit}: the smallest file found has {size} bytes; allow that much")
    size, found = best
    return PostTrained(found.model, found.steps, size, found.price)
