"""A small thing to search tickets in: a two-layer network and labelled points, which can be interrupted."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paretorch.training import Runtime
from paretorch.training.recipe_values import recipe_from
from paretorch.training.tasks import Batch, derive_seed, shuffled
from paretorch.workflows.tickets import Bench

RECIPE = recipe_from(
    {
        "epochs": 3,
        "data.batch": 8,
        "optimizer.lr": 0.1,
        "optimizer.momentum": 0.9,
        "optimizer.nesterov": False,
        "optimizer.weight_decay": 0.0,
        "schedule.name": "constant",
        "data.validation": 8,
    }
)
MASKED = ("0.weight", "2.weight")


class Points:
    """Thirty-two points of three classes, in batches of eight; `fail_at`: raise at that call of `loss`."""

    tallies: tuple[str, ...] = ("accuracy",)
    steps = 4

    def __init__(self, fail_at: int | None = None) -> None:
        generator = torch.Generator().manual_seed(1)
        self.points = torch.randn(32, 6, generator=generator)
        self.labels = (self.points[:, :3] - self.points[:, 3:]).argmax(1)
        self.fail_at, self.taken = fail_at, 0

    def epoch(self, number: int) -> Batch:
        order = shuffled(32, derive_seed(0, number))
        return self.points[order].view(4, 8, 6), self.labels[order].view(4, 8)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        if self.taken == self.fail_at:
            raise KeyboardInterrupt
        self.taken += 1
        logits = model(batch[0])
        return F.cross_entropy(logits, batch[1]), ((logits.argmax(1) == batch[1]).float().mean(),)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            return {"test_accuracy": float((model(self.points).argmax(1) == self.labels).float().mean())}

    def example(self) -> Tensor:
        return self.points[:2]


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))


def bench(fail_at: int | None = None, checkpoint_steps: int = 0) -> Bench:
    """As a fresh process would build it."""
    runtime = Runtime(checkpoint_steps=checkpoint_steps)
    return Bench(network(), Points(fail_at), RECIPE, test=Points, runtime=runtime)


def snapshot(folder: Path) -> dict[str, object]:
    """All that a search leaves, but for times and the words of the command line."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".pt":
            found[str(path.relative_to(folder))] = _plain(torch.load(path, weights_only=True))
        elif path.name == "rounds.jsonl":
            found[path.name] = path.read_text()
    return found


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value.tolist() if isinstance(value, Tensor) else value
