"""Accuracy of a classifier on batches that a user gives."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from paretorch.errors import ConfigError
from paretorch.support.eval_mode import in_eval


def measure_accuracy(model: nn.Module, data: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the share of inputs whose class has the largest output, in eval mode."""
    parameter = next(model.parameters(), None)
    right, count = 0, 0
    try:
        with in_eval(model):
            for inputs, classes in data:
                if not isinstance(inputs, Tensor) or not isinstance(classes, Tensor):
                    raise TypeError(f"not {type(inputs).__name__} and {type(classes).__name__} but tensors")
                logits = model(inputs if parameter is None else inputs.to(parameter.device))
                chosen = logits.argmax(1).cpu()
                if chosen.shape != classes.shape:
                    raise ValueError(f"classes of shape {tuple(classes.shape)} for outputs of {tuple(logits.shape)}")
                right += int((chosen == classes.cpu()).sum())
                count += classes.numel()
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(f"data must give batches of inputs and their classes: {error}") from error
    if not count:
        raise ConfigError("data gives no batches: nothing to measure accuracy on")
    return right / count
