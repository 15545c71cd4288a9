"""Ranges of activations, from batches of inputs.

`activation_ranges` measures the outputs of a module's own activations, to initialize α or to set bounds. The int8 export
(`onnx.int8`) needs a range for every tensor of the ONNX graph, which onnxruntime records, by the same two rules:

min-max     the smallest and the largest value
percentile  the range without (100 − q)/2 % of the values at either end, so that outliers do not widen the steps
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.core.attach.activations import BOUNDED
from paretorch.errors import ConfigError
from paretorch.support.checks import require_number
from paretorch.support.eval_mode import run_example, watched
from paretorch.support.inputs import ModelCall, batch_call

_ACTIVATIONS: tuple[type[nn.Module], ...] = (nn.ReLU, nn.GELU, nn.SiLU, nn.LeakyReLU, *BOUNDED)
_SAMPLE = 2**16  # values per activation and batch from which a percentile is computed
_HINT = "give a percentile above 50, up to 100, such as 99.9, or None for the smallest and largest value"


def activation_ranges(
    model: nn.Module, batches: Iterable[Any], *, percentile: float | None = None
) -> dict[str, tuple[float, float]]:
    """Return, for each activation module by name, the range of its outputs in eval mode over all batches.

    Args:
        batches: Tensors, tuples that begin with the inputs, or dicts of keyword arguments; see `support.inputs.batch_call`.
        percentile: Cut outliers, and average the ranges of the batches. Default: the smallest and largest value.
    """
    check_percentile(percentile)
    activations = {module: name for name, module in model.named_modules() if isinstance(module, _ACTIVATIONS)}
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in activations.values()}
    with watched(model, {module: _recorder(seen[name], percentile) for module, name in activations.items()}):
        for call in calls_of(model, batches):
            run_example(model, call)
    return {name: _joined(calls, percentile) for name, calls in seen.items() if calls}


def check_percentile(percentile: float | None) -> None:
    """Raise if this is not a percentile above 50 and up to 100, or None."""
    if percentile is not None:
        require_number("percentile", percentile, 50.0, 100.0, _HINT, above=True)


def calls_of(model: nn.Module, batches: Iterable[Any], like: ModelCall | None = None) -> Iterator[ModelCall]:
    """Yield the call of each batch, without its labels; raise if there is none.

    Args:
        like: The example that the model was exported with, if the calls must have the same arguments.
    """
    if isinstance(batches, Tensor | Mapping) or not isinstance(batches, Iterable):
        raise ConfigError("Calibration needs batches of inputs: a list or a loader of tensors, such as [x]")
    found = False
    for batch in batches:
        call = batch_call(model, batch, like)
        if not call.batch:
            raise ConfigError(
                "Calibration needs batches of inputs: tensors, tuples that begin with one, or dicts of keyword arguments"
            )
        found = True
        yield call
    if not found:
        raise ConfigError("Calibration needs at least one batch of inputs")


def _recorder(calls: list[tuple[float, float]], percentile: float | None) -> Any:
    def record(_: nn.Module, __: Any, output: Tensor) -> None:
        values = output.detach().float().flatten()
        if percentile is None:
            calls.append((float(values.min()), float(values.max())))
            return
        values = values[:: max(1, values.numel() // _SAMPLE)]
        cut = (1 - percentile / 100) / 2
        low, high = torch.quantile(values, torch.tensor([cut, 1 - cut], device=values.device)).tolist()
        calls.append((low, high))

    return record


def _joined(calls: list[tuple[float, float]], percentile: float | None) -> tuple[float, float]:
    if percentile is None:
        return min(low for low, _ in calls), max(high for _, high in calls)
    return sum(low for low, _ in calls) / len(calls), sum(high for _, high in calls) / len(calls)
