"""Means and variances after rounding: biases and batch norms, corrected without training.

Rounding moves the mean of a layer's outputs and changes their variance. Both follow from the moments of its inputs: the mean is Ŵ E[x̂],
the mean square ŵ Ĥ ŵᵀ. The difference to the dense network, on the same samples, goes into the bias, or into the statistics of a
batch norm that reads the outputs. The statistics of training stay the base: on few samples a difference is less noisy than a
new estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from paretorch.support.eval_mode import watched
from paretorch.support.inputs import ModelCall
from paretorch.workflows.posttraining.calibration import Moments
from paretorch.workflows.posttraining.layers import Layer

_MOST_RATIO = 4.0  # of a corrected variance
_NO_VARIANCE = 1e-12
_LEAST_GAIN = 0.05  # of the root mean square of a layer's gains


def find_norms(model: nn.Module, layers: Sequence[Layer], call: ModelCall) -> dict[Layer, _BatchNorm]:
    """Return the batch norm that reads the output of a layer, where one does, found by a forward pass."""
    owners = {reader: layer for layer in layers for reader in layer.readers if len(layer.readers) == 1}
    made: dict[int, tuple[Layer, Tensor]] = {}
    found: dict[Layer, _BatchNorm] = {}

    def after(module: nn.Module, inputs: Any, output: Any) -> None:
        if module in owners:
            made[id(output)] = (owners[module], output)  # the tensor is kept, so that its id stays its own
        elif id(inputs[0]) in made:
            assert isinstance(module, _BatchNorm)
            found[made[id(inputs[0])][0]] = module

    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    with watched(model, dict.fromkeys([*owners, *norms], after)):
        call(model)
    return found


def gains(norm: _BatchNorm | None, matrix: Tensor) -> Tensor:
    """Return what the norm multiplies each row of a weight by, relative to the mean square; bounded, ones without a norm."""
    found = torch.ones_like(matrix[:, :, :1])
    if norm is None or norm.running_var is None:
        return found
    scale = (norm.running_var.float() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.detach().float().abs()
    scale = (scale / scale.square().mean().sqrt().clamp_min(1e-30)).clamp_min(_LEAST_GAIN)
    return scale.view_as(found)


@dataclass(frozen=True, eq=False)
class Outputs:
    """Mean and mean square of the outputs of each channel of the dense network, without bias."""

    mean: Tensor
    square: Tensor


@torch.no_grad()
def correct(layer: Layer, rounded: Tensor, moments: Moments, dense: Outputs, norm: _BatchNorm | None) -> None:
    """Correct the bias of a layer, or the norm that follows it, for the rounded weights (groups, rows, columns)."""
    mean = moments.output_mean(rounded)
    shift = mean - dense.mean
    bias = getattr(layer.readers[0], "bias", None)
    if norm is not None:
        before, after = dense.square - dense.mean.square(), moments.output_square(rounded) - mean.square()
        _move(norm, shift, _ratio(after, before))
    elif isinstance(bias, nn.Parameter) and len(layer.readers) == 1:
        bias.sub_(shift.to(bias))


def _move(norm: nn.Module, shift: Tensor, ratio: Tensor) -> None:
    mean, variance = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
    mean += shift.to(mean)
    variance *= ratio.to(variance)


def _ratio(after: Tensor, before: Tensor) -> Tensor:
    """Return by how much a variance changed, within bounds; 1 for a channel that has none."""
    ratio = (after.clamp_min(0.0) / before.clamp_min(_NO_VARIANCE)).clamp(1 / _MOST_RATIO, _MOST_RATIO)
    return torch.where(before > _NO_VARIANCE, ratio, torch.ones_like(ratio))


@torch.no_grad()
def correct_rest(dense: nn.Module, model: nn.Module, calls: Sequence[ModelCall], done: set[str]) -> None:
    """Correct batch norms that read something else than one layer's output, by one pass of both networks."""
    theirs = _statistics(dense, calls)
    names = {name: module for name, module in model.named_modules() if name in theirs and name not in done}
    if not names:
        return
    ours = _statistics(model, calls)
    for name, norm in names.items():
        (mean, variance), (dense_mean, dense_variance) = ours[name], theirs[name]
        _move(norm, mean - dense_mean, _ratio(variance, dense_variance))


def _statistics(model: nn.Module, calls: Sequence[ModelCall]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return mean and variance of the inputs of each batch norm with statistics, by its name."""
    names: dict[nn.Module, str] = {
        module: name
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }
    sums: dict[str, list[Tensor]] = {}

    def add(module: nn.Module, inputs: Any, output: Any) -> None:
        values = inputs[0].detach().float().transpose(0, 1).flatten(1)
        parts = [values.sum(1), values.square().sum(1), torch.tensor(float(values.shape[1]))]
        before = sums.get(names[module])
        sums[names[module]] = parts if before is None else [a + b for a, b in zip(before, parts, strict=True)]

    if not names:
        return {}
    with watched(model, dict.fromkeys(names, add)):
        for call in calls:
            call(model)
    return {n: (total / count, square / count - (total / count).square()) for n, (total, square, count) in sums.items()}


def round_vectors(model: nn.Module) -> None:
    """Round what the file holds as vectors (norms, biases, running statistics) to bfloat16 values: half the bytes."""
    for tensor in model.state_dict().values():
        if isinstance(tensor, Tensor) and tensor.dtype == torch.float32 and tensor.dim() == 1:
            tensor.copy_(tensor.bfloat16().float())
