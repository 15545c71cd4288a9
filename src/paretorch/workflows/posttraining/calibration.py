"""Calibration batches: read and checked once, run through a model, outputs compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paretorch.errors import ConfigError, DataError
from paretorch.support.eval_mode import first_sentence
from paretorch.support.inputs import ModelCall, batch_call, tensors_in

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
