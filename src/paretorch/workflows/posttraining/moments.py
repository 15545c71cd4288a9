"""Second moments of layer inputs: what a change of a layer's weights does to its outputs.

For a layer with inputs x, a change D of its weights changes its outputs by tr(D H Dᵀ) on average, H = E[x xᵀ]. H is taken from the network
as it is at that time: with the earlier layers rounded, x is what they give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.errors import DataError
from paretorch.support.eval_mode import in_eval
from paretorch.support.inputs import ModelCall
from paretorch.workflows.posttraining.layers import Layer, input_rows

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
