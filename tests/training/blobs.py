"""A small thing to learn: two blobs on a line, with dropout so that random state matters."""

import contextlib
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paretorch.training import Recipe, Trainer
from paretorch.training.tasks import Batch, derive_seed, shuffled


class Blobs:
    """Sixteen points of two classes, in batches of four."""

    tallies: tuple[str, ...] = ("accuracy",)
    splits = True
    steps = 4

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self.labels = torch.arange(16) % 2
        noise = torch.randn(16, 3, generator=torch.Generator().manual_seed(1))
        self.points = noise * 0.3 + self.labels[:, None] * 2 - 1
        self.fail_at: int | None = None
        self.poison_at: int | None = None
        self.taken = 0

    def epoch(self, number: int) -> Batch:
        order = shuffled(16, derive_seed(self._seed, number))
        return self.points[order].view(4, 4, 3), self.labels[order].view(4, 4)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        if self.taken == self.fail_at:
            raise KeyboardInterrupt
        points, labels = batch
        logits = model(points)
        loss = F.cross_entropy(logits, labels)
        if self.taken == self.poison_at:
            loss = loss * float("nan")
        self.taken += 1
        return loss, ((logits.argmax(1) == labels).float().mean(),)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            logits = model(self.points)
        return {"test_accuracy": float((logits.argmax(1) == self.labels).float().mean())}

    def example(self) -> Tensor:
        return self.points[:2]


def small_model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))


Make = Callable[..., Trainer]


def state_of(trainer: Trainer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def rows_of(trainer: Trainer) -> list[dict[str, float]]:
    """The rows of metrics without the time they took."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in trainer.folder.history()]


def ends_where_it_does(whole: Trainer, make: Make, recipe: Recipe) -> None:
    """A run of the same recipe, broken off two steps before the end and resumed, ends where the whole one does."""
    broken = make(recipe, name="broken")
    broken.task.fail_at = whole.task.taken - 2  # type: ignore[attr-defined]
    with contextlib.suppress(KeyboardInterrupt):
        broken.run()
    continued = make(recipe, name="broken", resume=True)
    continued.run(resume=True)
    assert rows_of(continued) == rows_of(whole)
    expected, found = state_of(whole), state_of(continued)
    assert all(torch.equal(expected[key], found[key]) for key in expected)
