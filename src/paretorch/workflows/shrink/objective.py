"""What `shrink` trains on: batches to calibrate with, to judge by and to train with, and the distance from the original network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from paretorch.core.finish.recalibrate import recalibrate_norms
from paretorch.errors import ConfigError, DataError
from paretorch.support.arithmetic import exact
from paretorch.support.eval_mode import first_sentence, in_eval
from paretorch.support.inputs import ModelCall, batch_call, parts_of, tensors_in
from paretorch.training.distillation import Teacher

_MOST_BATCHES = 64
_MOST_ROWS = 1024
_HELD_OUT = 8  # one batch in so many is held out, and at most as many


class Batches:
    """What a user gives as batches.

    The first batches are kept in memory: most of them calibrate, the last few are held out. Training begins with the first
    batch again. Something that can be read several times, such as a list or a data loader, is; an iterator goes on.

    Args:
        source: Of anything that `batch_call` takes.
        model: The network that the batches are for.
        device: Where batches go.
    """

    def __init__(self, source: Any, model: nn.Module, device: torch.device) -> None:
        if isinstance(source, Tensor | Mapping | str | bytes) or not hasattr(source, "__iter__"):
            raise ConfigError(
                f"batches: give several, such as a data loader or a list of tensors, not one {type(source).__name__}"
            )
        self._source, self._model, self._device = source, model, device
        iterator = iter(source)
        self._rest = iterator if iterator is source else None
        kept = list(self._first(iterator))
        if not kept:
            raise DataError("batches gave no batch: shrink needs at least one, and an iterator can be read only once")
        held = 0 if len(kept) == 1 else min(_HELD_OUT, max(1, len(kept) // _HELD_OUT))
        self.calibration = kept[: len(kept) - held]
        """The batches to calibrate with."""
        self.held_out = kept[len(kept) - held :] if held else kept
        """The batches to judge by: no training sees them, unless there is only one batch."""
        self._held = set(range(len(kept) - held, len(kept)))

    def _first(self, iterator: Iterator[Any]) -> Iterator[ModelCall]:
        rows = 0
        for number, batch in enumerate(islice(iterator, _MOST_BATCHES)):
            call = self._call(number, batch)
            yield call
            rows += call.batch
            if rows >= _MOST_ROWS and number:
                return

    def _call(self, number: int, batch: Any) -> ModelCall:
        call = batch_call(self._model, batch).to(self._device)
        if not call.tensors:
            raise DataError(f"Batch {number} holds no tensor: give what the model takes")
        if any(tensor.is_floating_point() and not bool(tensor.isfinite().all()) for tensor in call.tensors):
            raise DataError(f"Batch {number} holds NaN or infinity: remove it")
        return call

    def train(self, steps: int, done: int = 0) -> Iterator[ModelCall]:
        """Yield one batch per step, from step `done` on; raises if they end before that many steps."""
        found = self._again() if self._rest is None else self._onwards(self._rest)
        for number in range(steps):
            try:
                at, batch = next(found)
            except StopIteration:
                held = len(self._held)
                raise DataError(
                    f"batches ended after {number + held}, and {steps} steps need {steps + held}: give more, fewer steps, or "
                    "something that can be read again, such as a list or a data loader"
                ) from None
            if number >= done:
                yield batch if isinstance(batch, ModelCall) else self._call(at, batch)

    def _again(self) -> Iterator[tuple[int, Any]]:
        """All batches but those held out, over and over."""
        while True:
            some = False
            for at, batch in enumerate(self._source):
                if at not in self._held:
                    some = True
                    yield at, batch
            if not some:
                return

    def _onwards(self, rest: Iterator[Any]) -> Iterator[tuple[int, Any]]:
        yield from enumerate(self.calibration)
        yield from enumerate(rest, len(self.calibration) + len(self._held))


def as_given(call: ModelCall) -> Any:
    """Return a call as a batch that says the same: a dict of keyword arguments, or a tuple."""
    return dict(call.kwargs) if call.kwargs else call.args


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
            return float(exact(torch.stack([self.loss(call, student) for call in calls])).mean())


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


def estimate_norms(student: nn.Module, objective: Objective, batches: Batches) -> None:
    """Estimate batch norms anew, unless the statistics that are there bring held-out batches nearer to the dense network."""
    norms = [module for module in student.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    if not norms:
        return
    before = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]
    distance = objective.distance(student, batches.held_out)
    recalibrate_norms(student, [as_given(call) for call in batches.calibration])
    if not objective.distance(student, batches.held_out) < distance:
        for buffer, value in before:
            buffer.copy_(value)
