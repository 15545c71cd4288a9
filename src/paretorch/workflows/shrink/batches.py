"""The batches of `shrink`: read, checked, and divided into those to calibrate with, to judge by and to train with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.errors import ConfigError, DataError
from paretorch.support.inputs import ModelCall, batch_call

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
