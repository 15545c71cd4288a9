"""Calibration batches, read and checked once, and the second moments of layer inputs that they give.

For a layer with inputs x, a change D of its weights changes its outputs by tr(D H Dᵀ) on average, H = E[x xᵀ]. H is taken from the
network as it is at that time: with the earlier layers rounded, x is what they give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paretorch.errors import ConfigError, DataError
from paretorch.support.eval_mode import first_sentence, in_eval
from paretorch.support.inputs import ModelCall, batch_call, tensors_in
from paretorch.workflows.posttraining.layers import Layer, input_rows

Distance = Callable[[Tensor, Tensor], Tensor]


def read_batches(batches: Iterable[Any], most: int, model: nn.Module, device: torch.device) -> list[ModelCall]:
    """Return up to `most` batches on the device, without labels; raises if there is none, or if one holds NaN or infinity."""
    if isinstance(batches, Tensor | Mapping) or not hasattr(batches, "__iter__"):
        raise ConfigError(f"batches: give several, such as a data loader or a list, not one {type(batches).__name__}")
    found = [
        (batch if isinstance(batch, ModelCall) else batch_call(model, batch)).to(device)
        for batch in islice(batches, most)
    ]
    if not found:
        raise DataError("batches gave no batch: post-training needs at least one, and an iterator serves only once")
    for i, call in enumerate(found):
        if any(tensor.is_floating_point() and not bool(tensor.isfinite().all()) for tensor in call.tensors):
            raise DataError(f"Batch {i} of the calibration batches holds NaN or infinity: remove it")
    return found


def try_run(model: nn.Module, call: ModelCall) -> Any:
    """Run the first batch: what the model raises is a mistake of the caller."""
    try:
        with torch.no_grad():
            found = call(model)
    except Exception as error:  # a user's module may raise anything
        raise ConfigError(f"The model does not run on the first batch: {first_sentence(error)}") from error
    if not bool(output_of(found).isfinite().all()):
        raise ConfigError("The model returns NaN or infinity for the first batch: repair it first")
    return found


def output_of(value: Any) -> Tensor:
    """Return the output to compare by: `logits` if there are any, else the first floating-point tensor."""
    logits = value.get("logits") if isinstance(value, Mapping) else getattr(value, "logits", None)
    found = [tensor for tensor in tensors_in(logits if logits is not None else value) if tensor.is_floating_point()]
    if not found:
        raise ConfigError("The model returns no floating-point tensor to compare by")
    return found[0].detach().float()


def relative_error(output: Tensor, reference: Tensor) -> Tensor:
    """Return |output − reference|² / |reference|²."""
    return (output - reference).square().sum() / reference.square().sum().clamp_min(1e-30)


def divergence(output: Tensor, reference: Tensor) -> Tensor:
    """Return the mean KL divergence from the reference's distribution, both given as logits."""
    p, q = F.log_softmax(reference.flatten(0, -2), -1), F.log_softmax(output.flatten(0, -2), -1)
    return F.kl_div(q, p, log_target=True, reduction="batchmean")


def choose_distance(value: Any) -> Distance:
    """Return `divergence` if the outputs are logits (named so, or one row of numbers per example), else `relative_error`."""
    named = value.get("logits") if isinstance(value, Mapping) else getattr(value, "logits", None)
    output = output_of(value)
    return divergence if output.shape[-1] > 1 and (named is not None or output.dim() == 2) else relative_error


@torch.no_grad()
def outputs(model: nn.Module, calls: Sequence[ModelCall]) -> list[Tensor]:
    """Return the output to compare by for each batch."""
    return [output_of(call(model)) for call in calls]


def distance_to(found: Sequence[Tensor], reference: Sequence[Tensor], distance: Distance) -> float:
    """Return the mean distance over the batches."""
    total = [float(distance(one, other)) for one, other in zip(found, reference, strict=True)]
    return sum(total) / len(total)


MOST_ROWS = 2048  # samples per layer and batch
_STAGE_BYTES = 1 << 30  # of moments at once


class _Reached(Exception):
    """The last layer of interest has run: the rest of the forward pass is not needed."""


@dataclass(eq=False)
class Moments:
    """Averages over the inputs of one layer: H as (groups, columns, columns), the mean as (groups, columns)."""

    hessian: Tensor
    mean: Tensor
    count: int = 0

    @classmethod
    def empty(cls, layer: Layer) -> Moments:
        groups, _, columns = layer.matrix().shape
        device = layer.weight.device
        return cls(torch.zeros(groups, columns, columns, device=device), torch.zeros(groups, columns, device=device))

    def add(self, rows: Tensor) -> None:
        self.hessian += rows.transpose(1, 2) @ rows
        self.mean += rows.sum(1)
        self.count += rows.shape[1]

    def averaged(self) -> Moments:
        self.hessian /= self.count
        self.mean /= self.count
        return self

    def output_mean(self, matrix: Tensor) -> Tensor:
        """Return the mean output of each channel of a weight (groups, rows, columns), without bias."""
        return torch.einsum("grc,gc->gr", matrix, self.mean).flatten()

    def output_square(self, matrix: Tensor) -> Tensor:
        """Return the mean square of each channel."""
        return ((matrix @ self.hessian) * matrix).sum(2).flatten()


@contextmanager
def inputs_read(layers: Sequence[Layer], take: Callable[[Layer, nn.Module, Tensor], None]) -> Iterator[None]:
    """Inside, every run of a layer gives its inputs to `take`, as (groups, samples, columns)."""

    def hook_of(layer: Layer) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            rows = input_rows(module, (*inputs, *named.values()), MOST_ROWS)
            if rows is not None:
                take(layer, module, rows)

        return hook

    handles = [
        reader.register_forward_pre_hook(hook_of(layer), with_kwargs=True)
        for layer in layers
        for reader in layer.readers
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def execution_order(model: nn.Module, call: ModelCall, layers: Sequence[Layer]) -> tuple[list[Layer], set[str]]:
    """Return the layers in the order in which they run, those without inputs first, and the names of those that run once."""
    runs: dict[Layer, int] = {}

    def count(layer: Layer, module: nn.Module, rows: Tensor) -> None:
        runs[layer] = runs.get(layer, 0) + 1

    with in_eval(model), inputs_read(layers, count):
        call(model)
    order = {layer: i for i, layer in enumerate(runs)}
    ordered = sorted(layers, key=lambda layer: order.get(layer, -1))
    return ordered, {layer.name for layer, times in runs.items() if times == 1}


def stages(layers: Sequence[Layer], most: int) -> list[list[Layer]]:
    """Split the layers into at most `most` runs of about equal length, more if their moments would take too much memory."""
    longest = -(-len(layers) // most)
    found: list[list[Layer]] = []
    held = 0
    for layer in layers:
        groups, _, columns = layer.matrix().shape
        size = 4 * groups * columns * columns if layer.readers else 0
        if not found or len(found[-1]) >= longest or held + size > _STAGE_BYTES:
            found.append([])
            held = 0
        found[-1].append(layer)
        held += size
    return found


def collect(
    model: nn.Module, calls: Sequence[ModelCall], layers: Sequence[Layer], once: set[str]
) -> dict[Layer, Moments]:
    """Return the moments of the layers that have inputs, by a forward pass that ends at the last of them.

    Args:
        layers: In the order in which they run.
        once: The names of those that run once per forward pass.
    """
    found: dict[Layer, Moments] = {}
    last = next((layer for layer in reversed(layers) if layer.readers), None)

    def add(layer: Layer, module: nn.Module, rows: Tensor) -> None:
        found.setdefault(layer, Moments.empty(layer)).add(rows)
        if layer is last and layer.name in once:
            raise _Reached

    if last is not None:
        with in_eval(model), inputs_read(layers, add):
            for call in calls:
                with suppress(_Reached):
                    call(model)
    for layer, moments in found.items():
        if not bool(moments.averaged().hessian.isfinite().all()):
            raise DataError(f"Inputs of {layer.name} overflow or hold NaN on some calibration batch: remove it")
    return found
