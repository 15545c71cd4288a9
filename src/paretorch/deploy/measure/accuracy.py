"""Accuracy of a classifier on batches of inputs and classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from paretorch.errors import ConfigError
from paretorch.support.eval_mode import first_sentence, in_eval
from paretorch.support.inputs import LABELS, ModelCall, main_output, read_example, tensors_in


def measure_accuracy(model: nn.Module, data: Iterable[Any]) -> float:
    """Return the share of inputs whose class has the largest output, in eval mode.

    Args:
        data: Batches of inputs and their classes: (inputs, classes), with inputs as `example=` takes them; (first, second,
            classes), for a model of several arguments; or a dict of keyword arguments with "labels" among them.
    """
    parameter = next(model.parameters(), None)
    right, count = 0, 0
    try:
        with in_eval(model):
            for batch in data:
                call, classes = _split(batch)
                logits = main_output(call.to(None if parameter is None else parameter.device)(model))
                chosen = logits.argmax(1).cpu()
                if chosen.shape != classes.shape:
                    raise ValueError(f"classes of shape {tuple(classes.shape)} for outputs of {tuple(logits.shape)}")
                right += int((chosen == classes.cpu()).sum())
                count += classes.numel()
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(f"data must give batches of inputs and their classes: {first_sentence(error)}") from error
    if not count:
        raise ConfigError("data gives no batches: nothing to measure accuracy on")
    return right / count


def _split(batch: Any) -> tuple[ModelCall, Tensor]:
    """Return the call of a batch, and its classes."""
    inputs: Any
    if isinstance(batch, Mapping):
        name = next((name for name in LABELS if name in batch), None)
        if name is None:
            raise TypeError(f"a dict has no {LABELS[0]!r}")
        inputs, classes = {key: value for key, value in batch.items() if key != name}, batch[name]
    else:
        *parts, classes = batch
        inputs = parts[0] if len(parts) == 1 else parts
    if not isinstance(classes, Tensor) or not tensors_in(inputs):
        raise TypeError(f"not {type(inputs).__name__} and {type(classes).__name__} but tensors")
    return read_example(inputs, dims=0), classes
