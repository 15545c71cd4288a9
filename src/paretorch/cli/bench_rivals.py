"""What others would do with a dense network before they save it: prune it, by weights and by channels, and fine-tune.

Each is a run of its own in the bench's folder, which is resumed like any other.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paretorch.cli.bench_sources import Source
from paretorch.cli.inputs import SHAPES
from paretorch.errors import ConfigError
from paretorch.training.recipe import Recipe
from paretorch.training.runtime import Runtime

KINDS = ("weights", "channels")
"""What can be taken away."""


def pruned(
    dense: Source,
    shares: Sequence[float],
    epochs: int,
    out: Path,
    runtime: Runtime,
    kinds: Sequence[str] = KINDS,
    chooser: str = "magnitude",
) -> list[Source]:
    """The dense network without these shares of its weights: the smallest ones, or whole channels; fine-tuned."""
    from paretorch.training import train

    assert dense.recipe is not None
    if dense.recipe.compression.norms is not None:
        raise ConfigError(f"{dense.name} has folded norms and cannot be trained on: train it without norms.")
    found = []
    for share, kind in itertools.product(shares, kinds):
        by = {"weights": "mp", "channels": "channels" if chooser == "magnitude" else chooser}[kind]
        name = f"{dense.name}-{by}-{share:g}"
        if kind == "weights":
            recipe = _without_weights(dense.recipe, dense.artefact, share, epochs)
        else:
            cut = out / name / "start.pare"
            if not cut.exists():
                _cut(dense, share, cut, chooser)
            recipe = _without_channels(dense.recipe, cut, epochs)
        train(recipe, out / name, runtime, resume=True)
        found.append(Source(name, out / name / "model.pare", dense.data, recipe))
    return found


# Both train at a tenth of the rate, as after any pruning; the schedules of the dense run may name epochs that are not there.


def _without_weights(recipe: Recipe, start: Path, share: float, epochs: int) -> Recipe:
    schedule = replace(recipe.schedule, finetune_lr=None, finetune_name="cosine", finetune_milestones=None)
    pruned = replace(recipe.compression, pruning="mp", sparsity=share)
    return replace(recipe, start=str(start), epochs=0, finetune=epochs, schedule=schedule, compression=pruned)


def _without_channels(recipe: Recipe, start: Path, epochs: int) -> Recipe:
    optimizer = replace(recipe.optimizer, lr=recipe.optimizer.lr / 10)
    schedule = replace(recipe.schedule, name="cosine", milestones=(), warmup=0)
    return replace(recipe, start=str(start), epochs=epochs, optimizer=optimizer, schedule=schedule)


def _cut(dense: Source, share: float, path: Path, chooser: str) -> None:
    import torch

    from paretorch import deploy
    from paretorch.deploy.rivals import prune_channels

    network = deploy.load(dense.artefact)
    example = torch.zeros(1, *SHAPES[dense.data])
    path.parent.mkdir(parents=True, exist_ok=True)
    deploy.save(prune_channels(network, example, share, exclude=("head",), by=chooser), path)
