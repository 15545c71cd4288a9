"""Networks and training runs of one recipe and seed: everything in a round that is not about masks."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from paretorch.errors import ConfigError
from paretorch.sparsity.tickets.files import Row
from paretorch.sparsity.tickets.state import Weights
from paretorch.training.folder import RunFolder
from paretorch.training.recipe import Recipe, Runtime
from paretorch.training.run import Setup, prepare, trainer_of
from paretorch.training.task import Task
from paretorch.training.tasks.choose import choose

if TYPE_CHECKING:
    from paretorch.core.plan import Plan


class Bench:
    """Builds the network and the data once; trains as often as asked, each time in a folder that can be resumed."""

    def __init__(self, recipe: Recipe, runtime: Runtime) -> None:
        check_recipe(recipe)
        self.recipe, self.runtime = recipe, replace(runtime, progress="quiet")
        setup = prepare(recipe, self.runtime)
        if "accuracy" not in setup.task.tallies:
            raise ConfigError(f"Tickets are compared by accuracy, which {recipe.data} does not have; use images.")
        self._model, self._task, self._device = setup.model, setup.task, setup.device
        self._test: Task | None = None
        self.steps = recipe.epochs * setup.task.steps
        self.exclude = tuple(getattr(setup.model, "leave_out", {}).get("sparsity", ()))

    def step_of(self, epochs: float) -> int:
        """The number of steps in so many epochs."""
        return round(epochs * self._task.steps)

    def fresh(self, weights: Weights | None = None) -> nn.Module:
        """The network at its initialisation, or with these weights."""
        model = copy.deepcopy(self._model)
        if weights is not None:
            model.load_state_dict(weights)
        return model

    def train(
        self,
        model: nn.Module,
        plan: "Plan | None",
        folder: Path,
        *,
        frozen: bool = False,
        after_step: Callable[[int], None] | None = None,
    ) -> Row:
        """Run the recipe to its end, from where the folder's checkpoint is; returns the last row of metrics."""
        # A rate of 0 and no freezing by `requires_grad`: the loop wants something to optimise.
        recipe = replace(self.recipe, lr=0.0, weight_decay=0.0) if frozen else self.recipe
        if self._device.type == "cuda":
            torch.compiler.reset()  # or the compiler gives up after some rounds: it counts networks it has seen
        run = RunFolder(folder, recipe, resume=True, device=self._device)
        trainer = trainer_of(Setup(model, self._task, plan, self._device), recipe, run, self.runtime)
        trainer.after_step = after_step
        return trainer.run(resume=True)

    def test(self, model: nn.Module) -> float:
        """Accuracy on the real test set, which nothing is chosen by."""
        if self._test is None:
            self._test = choose(replace(self.recipe, validation=0), self.runtime, self._device)[0]
        return self._test.evaluate(model.eval())["test_accuracy"]


def check_recipe(recipe: Recipe) -> None:
    """Refuse a recipe that would choose tickets by the test set, or compress by itself."""
    if recipe.compresses:
        raise ConfigError("A ticket search decides the sparsity itself: leave sparsity, bits and budget out.")
    if not recipe.validation:
        raise ConfigError(
            "Tickets are chosen by held-out training images, never by the test set: set validation, such as 5000."
        )
