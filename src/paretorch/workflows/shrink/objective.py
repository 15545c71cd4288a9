"""How far a smaller network is from the one it was made of: the loss of training, and the measure of every choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.errors import ConfigError, DataError
from paretorch.support.eval_mode import first_sentence, in_eval
from paretorch.support.inputs import ModelCall, parts_of, tensors_in
from paretorch.training.distillation import Teacher

_SMALLEST = 1e-30


class Objective:
    """Compares a student with the dense network, which is its teacher.

    Logits are compared by `distillation_loss`; other outputs by |student − teacher|² / |teacher|². A tensor counts as logits if it
    is named so, has two dimensions, or three if the inputs are integers (tokens).

    Args:
        dense: In evaluation mode and without gradients.
    """

    def __init__(self, dense: nn.Module, example: ModelCall) -> None:
        self.dense = dense
        self._teacher = Teacher(dense, alpha=1.0)
        outputs = self._try(example)
        self.compares_logits = _has_logits(outputs, example)
        """Whether outputs are compared by `distillation_loss`."""
        self.is_plain = self.compares_logits and isinstance(outputs, Tensor)
        """Whether the output is one tensor of logits, without a name."""
        self.distance(dense, [example])  # raises if its outputs do not match those of another call

    def _try(self, example: ModelCall) -> Any:
        try:
            with torch.no_grad():
                outputs = example(self.dense)
        except Exception as error:  # a user's module may raise anything
            raise ConfigError(f"The model does not run on the first batch: {first_sentence(error)}") from error
        if not _floats(outputs):
            raise ConfigError("The model returns no floating-point tensor to compare by")
        return outputs

    def check(self, calls: Sequence[ModelCall]) -> None:
        """Raise if the dense network gives NaN or infinity for one of the batches."""
        for number, call in enumerate(calls):
            with torch.no_grad():
                outputs = call(self.dense)
            compared = parts_of(outputs).get("logits", outputs)
            # An excluded class may have the logit −∞.
            least = -math.inf if self.compares_logits else torch.finfo(torch.float32).min
            if not all(bool(((tensor >= least) & (tensor < math.inf)).all()) for tensor in _floats(compared)):
                raise DataError(
                    f"The model gives NaN or infinity for batch {number}: remove the batch, or repair the model"
                )

    def loss(self, call: ModelCall, student: nn.Module) -> Tensor:
        """Return the distance of the student's outputs, with their gradient."""
        outputs = call(student)
        if self.compares_logits:
            return self._teacher.repeat(call, outputs)
        return relative_error(outputs, self._teacher.outputs(call))

    def distance(self, student: nn.Module, calls: Sequence[ModelCall]) -> float:
        """Return the mean distance over the batches, with the student in evaluation mode."""
        with in_eval(student):
            return float(torch.stack([self.loss(call, student) for call in calls]).double().mean())


def relative_error(student: Any, teacher: Any) -> Tensor:
    """Return |student − teacher|² / |teacher|² over all floating-point outputs."""
    ours, theirs = _floats(student), _floats(teacher)
    if [tensor.shape for tensor in ours] != [tensor.shape for tensor in theirs]:
        raise ConfigError("the outputs do not match: their shapes differ from call to call")
    error = torch.stack([(one - other).float().square().sum() for one, other in zip(ours, theirs, strict=True)]).sum()
    return error / torch.stack([other.float().square().sum() for other in theirs]).sum().clamp_min(_SMALLEST)


def _floats(outputs: Any) -> list[Tensor]:
    return [tensor for tensor in tensors_in(outputs) if tensor.is_floating_point()]


def _has_logits(outputs: Any, example: ModelCall) -> bool:
    parts = parts_of(outputs)
    if any(name == "logits" or name.endswith("_logits") or name == "last_hidden_state" for name in parts):
        return True
    found = [tensor for tensor in _floats(outputs) if tensor.dim()]
    reads_tokens = not any(tensor.is_floating_point() for tensor in example.tensors)
    dims = (2, 3) if reads_tokens else (2,)
    return isinstance(outputs, Tensor) and len(found) == 1 and found[0].dim() in dims and found[0].shape[-1] > 1
