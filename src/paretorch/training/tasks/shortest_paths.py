"""The shortest-paths task of chapter 3: which cells of a grid lie on some shortest path between two points.

Its curriculum has phases of equal length, each with sets of its own: the same network meets longer and longer paths.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paretorch.errors import ConfigError
from paretorch.support.arithmetic import widest_float
from paretorch.training.tasks import Batch, derive_seed, shuffled
from paretorch.zoo.data.shortest_paths import Grids, generate

_EVALUATION_BATCH = 500
_TRAIN, _TEST, _VALIDATION = 0, 1, 2


def make_grids(limit: int, count: int, test_count: int, size: int, validation: int) -> tuple[Grids, Grids]:
    """Training and held-out grids with paths of at most `limit` moves, from seeds of their own.

    With `validation`, that many grids from a third seed take the place of the test grids. The grids do not depend on
    the recipe's seed: runs over seeds are runs on the same data.
    """
    held_out = (validation, _VALIDATION) if validation else (test_count, _TEST)
    if count < 1 or held_out[0] < 1:
        raise ConfigError(f"Shortest paths need at least one grid to train on and one to test on, not {count}")
    train = generate(count, limit, derive_seed(limit, _TRAIN), size)
    return train, generate(held_out[0], limit, derive_seed(limit, held_out[1]), size)


class ShortestPaths:
    """Binary cross-entropy per cell. F₁ is the metric, since most cells are on no path; all cells count as one set.

    phases: training and held-out grids of each; epochs: how long a phase lasts, 0: all is fine-tuning, in the last.
    The evaluation is on the held-out grids of the phase whose epoch was asked for last (before any was: of the last phase),
    and says which one that is.
    The last partial batch of an epoch is dropped; the order is a pure function of (seed, epoch). The F₁ of training is
    the mean over batches.
    """

    tallies: tuple[str, ...] = ("f1",)
    splits = True

    def __init__(
        self,
        phases: Sequence[tuple[Grids, Grids]],
        *,
        epochs: int = 1,
        batch: int = 128,
        seed: int = 0,
        device: torch.device | str = "cpu",
        autocast: bool = False,
    ) -> None:
        self._device = torch.device(device)
        self._train, self._held_out = (
            [(grids.inputs.to(self._device), grids.labels.to(self._device)) for grids in part]
            for part in zip(*phases, strict=True)
        )
        self._batch, self._seed, self._autocast = batch, seed, autocast
        self._epochs, self._phase = epochs, len(phases) - 1
        count = len(phases[0][0].labels)
        self.steps = count // batch
        if self.steps == 0:
            raise ConfigError(f"A batch of {batch} is larger than the training set of {count} grids")

    def epoch(self, number: int) -> Batch:
        self._phase = self._phase_of(number)
        return self._drawn(number)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        inputs, labels = batch
        logits = self._logits(model, inputs)
        loss = F.binary_cross_entropy_with_logits(logits, labels.float())
        return loss, (_f1(_counts(logits.detach(), labels)),)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        inputs, labels = self._held_out[self._phase]
        loss = torch.zeros((), dtype=widest_float(self._device), device=self._device)
        counts = torch.zeros(2, dtype=widest_float(self._device), device=self._device)
        with torch.no_grad():
            for start in range(0, len(labels), _EVALUATION_BATCH):
                part = slice(start, start + _EVALUATION_BATCH)
                logits = self._logits(model, inputs[part])
                loss += F.binary_cross_entropy_with_logits(logits, labels[part].float(), reduction="sum").to(loss.dtype)
                counts += _counts(logits, labels[part])
        stage = {"stage": float(self._phase)} if len(self._held_out) > 1 else {}
        return {"test_loss": float(loss) / labels.numel(), "test_f1": float(_f1(counts)), **stage}

    def example(self) -> Tensor:
        return self._prepared(self._held_out[0][0][:2])

    def inputs(self, number: int, count: int) -> list[Tensor]:
        """Up to `count` training batches of an epoch as the model sees them, to re-estimate statistics with."""
        return [self._prepared(grids) for grids in self._drawn(number)[0][:count]]

    def _phase_of(self, number: int) -> int:
        last = len(self._train) - 1
        return min(number // self._epochs, last) if self._epochs else last

    def _drawn(self, number: int) -> Batch:
        inputs, labels = self._train[self._phase_of(number)]
        order = shuffled(len(labels), derive_seed(self._seed, number, 0))[: self.steps * self._batch].to(self._device)
        shape = (self.steps, self._batch)
        return inputs[order].view(*shape, *inputs.shape[1:]), labels[order].view(*shape, *labels.shape[1:])

    def _prepared(self, inputs: Tensor) -> Tensor:
        dtype = torch.bfloat16 if self._autocast else torch.float32
        return inputs.to(dtype).contiguous(memory_format=torch.channels_last)

    def _logits(self, model: nn.Module, inputs: Tensor) -> Tensor:
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._autocast):
            logits: Tensor = model(self._prepared(inputs))
        return logits.float()


def _counts(logits: Tensor, labels: Tensor) -> Tensor:
    """Cells found and right, and cells found plus cells to find; both as numbers on the device."""
    found = logits > 0
    return torch.stack([(found & labels).sum(), found.sum() + labels.sum()]).to(widest_float(found.device))


def _f1(counts: Tensor) -> Tensor:
    """2 · right / (found + to find); every grid has cells to find, so the sum is never 0."""
    return (2 * counts[0] / counts[1]).float()
