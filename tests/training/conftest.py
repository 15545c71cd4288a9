"""Fixtures of the training tests."""

from pathlib import Path

import pytest

from paretorch.training import Recipe, RunFolder, Runtime, Trainer
from paretorch.training.compression import attach
from paretorch.training.recipe_values import recipe_from

from .blobs import Blobs, Make, small_model


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A trainer of the blobs in `tmp_path / name`, as a fresh process would build it."""

    def build(
        recipe: Recipe | None = None, *, name: str = "run", resume: bool = False, steps: int = 0, epochs: int = 1
    ) -> Trainer:
        recipe = recipe or recipe_from({"epochs": 3, "data.batch": 4, "optimizer.lr": 0.05})
        runtime = Runtime(checkpoint_steps=steps, checkpoint_epochs=epochs, progress="quiet")
        folder = RunFolder(tmp_path / name, recipe, resume=resume)
        model, task = small_model(), Blobs(recipe.seed)
        plan = attach(model, recipe, steps=recipe.epochs * task.steps, example=task.example())
        return Trainer(model, task, recipe, folder, plan=plan, runtime=runtime)

    return build
