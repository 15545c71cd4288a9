"""Classification of images that stay on the disk: worker processes decode each batch shortly before its step.

The order of an epoch is a pure function of (seed, epoch), and what is made of an image one of (seed, epoch, number). So a run that goes
on in the middle of an epoch begins to read at its next batch. Each of several ranks reads its own part of every batch.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paretorch.errors import ConfigError
from paretorch.support.arithmetic import widest_float
from paretorch.training.tasks import Batch, derive_seed
from paretorch.training.tasks.images import Classification
from paretorch.zoo.data.on_disk import DiskImages
from paretorch.zoo.data.reading import TEST, TRAIN, Item, Reader
from paretorch.zoo.data.views import DEVIATION, MEAN, View

_TOP = 5
_MOST_EVALUATED = 256  # images at once


class DiskClassification(Classification):
    """Classification of photographs of any size; the last partial batch of an epoch is dropped.

    Args:
        images: What is on the disk.
        view: How it is cropped and changed.
        workers: Processes that read; 0: this one.
        Others: As of `ImageClassification`.
    """

    def __init__(
        self,
        images: DiskImages,
        view: View,
        *,
        workers: int,
        batch: int = 128,
        label_smoothing: float = 0.0,
        seed: int = 0,
        device: torch.device | str = "cpu",
        autocast: bool = False,
    ) -> None:
        super().__init__(
            MEAN,
            DEVIATION,
            count=len(images.train.labels),
            batch=batch,
            label_smoothing=label_smoothing,
            seed=seed,
            device=device,
            autocast=autocast,
        )
        self._images, self._view = images, view
        self._reader = Reader(images, view, seed=seed, workers=workers, pinned=self._device.type == "cuda")
        self._rank, self._ranks, self._parts = 0, 1, 1
        self._mean: Callable[[Tensor], Tensor] = lambda value: value

    def share(self, rank: int, count: int, parts: int, mean: Callable[[Tensor], Tensor]) -> None:
        """See `paretorch.training.tasks.SharedTask`."""
        if self._batch % (count * parts):
            raise ConfigError(
                f"A batch of {self._batch} cannot be shared out equally: give a --batch that is a multiple of {count * parts} "
                f"({count} ranks times {parts} parts)"
            )
        self._rank, self._ranks, self._parts, self._mean = rank, count, parts, mean

    def epoch(self, number: int) -> "EpochStream":
        order = self._images.train.order(torch.Generator().manual_seed(derive_seed(self._seed, number, 0)))
        rows = order[: self.steps * self._batch].view(self.steps, self._parts, self._ranks, -1)
        own = rows[:, :, self._rank].reshape(self.steps, -1)
        return EpochStream(self._reader, number, own, rows.reshape(self.steps, -1), self._device)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        count = len(self._images.test.labels)
        share = -(-count // self._ranks)
        rows = min(share, _MOST_EVALUATED)

        def items(step: int) -> list[Item]:
            # Ranks take equally many batches of equally many rows, since some share the network out: the last may be read twice.
            places = range(step * rows, min((step + 1) * rows, share))
            return [(TEST, 0, min(self._rank + self._ranks * place, count - 1)) for place in places]

        totals = torch.zeros(3, dtype=widest_float(self._device), device=self._device)
        with torch.no_grad():
            for step, (pixels, labels) in enumerate(self._reader.read(items, 0, -(-share // rows))):
                twice = self._rank + self._ranks * (step * rows + len(labels) - 1) >= count
                own = slice(0, len(labels) - twice)
                logits = self._logits(model, pixels.to(self._device, non_blocking=True))
                totals += _judge(logits[own], labels[own].to(self._device), totals.dtype)
        loss, correct, near = (self._mean(totals) * (self._ranks / count)).tolist()
        found = {"test_loss": loss, "test_accuracy": correct}
        return {**found, "test_top5_accuracy": near} if self._images.classes > _TOP else found

    def example(self) -> Tensor:
        shape, generator = (2, 3, self._view.size, self._view.size), torch.Generator().manual_seed(0)
        return self._prepared(torch.randint(256, shape, generator=generator, dtype=torch.uint8).to(self._device))

    def inputs(self, number: int, count: int) -> list[Tensor]:
        """Up to `count` training batches of an epoch as the model sees them, to re-estimate statistics with."""
        pixels, _, *colours = self.epoch(number).first(count)
        return [self._prepared(*own) for own in zip(pixels, *colours, strict=True)]


def _judge(logits: Tensor, labels: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum of the losses, how many are right, and how many are among the first five."""
    wrong = F.cross_entropy(logits, labels, reduction="sum")
    ranks = logits.topk(min(_TOP, logits.shape[1])).indices == labels[:, None]
    return torch.stack([wrong.to(dtype), ranks[:, :1].sum().to(dtype), ranks.sum().to(dtype)])


class EpochStream:
    """See `paretorch.training.tasks.Stream`.

    Args:
        reader: Reads.
        number: Of the epoch.
        own: What this rank reads of each batch, [steps, rows].
        every: All of each batch.
        device: Where the first batches go.
    """

    def __init__(self, reader: Reader, number: int, own: Tensor, every: Tensor, device: torch.device) -> None:
        self._reader, self._number, self._own, self._every, self._device = reader, number, own, every, device

    def begin(self, step: int) -> Iterator[Batch]:
        return self._read(self._own, step, len(self._own))

    def first(self, count: int) -> Batch:
        found = self._read(self._every, 0, min(count, len(self._every)))
        return tuple(torch.stack(part).to(self._device) for part in zip(*found, strict=True))

    def _read(self, rows: Tensor, start: int, stop: int) -> Iterator[Batch]:
        def items(step: int) -> list[Item]:
            return [(TRAIN, self._number, number) for number in rows[step].tolist()]

        return self._reader.read(items, start, stop)
