"""Networks and training runs of one recipe: everything in a round that is not about masks."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paretorch.core.attach.sites import Selector
from paretorch.errors import ConfigError
from paretorch.training.folder import RunFolder
from paretorch.training.recipe import Recipe
from paretorch.training.recipe_values import changed
from paretorch.training.run import Setup, prepare, trainer_of
from paretorch.training.runtime import Runtime
from paretorch.training.tasks import Task
from paretorch.training.tasks.choose import choose
from paretorch.workflows.tickets.state import Weights
from paretorch.workflows.tickets.storage import Row

if TYPE_CHECKING:
    from paretorch.core.plan import Plan

# Weights that stay: a rate of 0, and no freezing by `requires_grad`, since the loop wants something to optimise.
_FROZEN_WEIGHTS: dict[str, Any] = {
    "optimizer.name": "sgd",
    "optimizer.lr": 0.0,
    "optimizer.momentum": 0.0,
    "optimizer.weight_decay": 0.0,
}


class Bench:
    """Trains one network on one task as often as asked, each time in a folder that can be resumed.

    task: what tickets are trained on and chosen by; its `evaluate` must give "test_accuracy", on held-out data.
    test: makes the task whose "test_accuracy" is reported beside it; None: none is.
    exclude: layers that keep all their weights, as `compress` takes them.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        recipe: Recipe,
        *,
        test: Callable[[], Task] | None = None,
        exclude: Selector = (),
        runtime: Runtime | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._model, self._task, self._make_test = model, task, test
        self.recipe, self.exclude = recipe, exclude
        self._runtime = replace(runtime or Runtime(), progress="quiet")
        self._device = device or torch.device("cpu")
        self._test: Task | None = None
        self.steps = recipe.epochs * task.steps

    @classmethod
    def of(cls, recipe: Recipe, runtime: Runtime) -> "Bench":
        """The network and the data that a recipe names; tickets are chosen by its validation split."""
        check_recipe(recipe)
        setup = prepare(recipe, runtime)
        if "accuracy" not in setup.task.tallies:
            raise ConfigError(f"Tickets are compared by accuracy, which {recipe.data.name} does not have; use images")

        def test() -> Task:
            return choose(changed(recipe, {"data.validation": 0}), runtime, setup.device)[0]

        left_out = tuple(getattr(setup.model, "leave_out", {}).get("sparsity", ()))
        return cls(setup.model, setup.task, recipe, test=test, exclude=left_out, runtime=runtime, device=setup.device)

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
        recipe = changed(self.recipe, _FROZEN_WEIGHTS) if frozen else self.recipe
        if self._device.type == "cuda":
            torch.compiler.reset()  # or the compiler gives up after some rounds: it counts networks it has seen
        run = RunFolder(folder, recipe, resume=True, device=self._device)
        trainer = trainer_of(Setup(model, self._task, plan, self._device), recipe, run, self._runtime)
        trainer.after_step = after_step
        return trainer.run(resume=True)

    def test(self, model: nn.Module) -> float | None:
        """Accuracy on the real test set, which nothing is chosen by."""
        if self._make_test is None:
            return None
        self._test = self._test or self._make_test()
        return self._test.evaluate(model.eval())["test_accuracy"]


def check_recipe(recipe: Recipe) -> None:
    """Refuse a recipe that would choose tickets by the test set, or compress by itself."""
    if recipe.compresses:
        raise ConfigError("A ticket search decides the sparsity itself: leave sparsity, bits and budget out")
    if not recipe.data.validation:
        raise ConfigError(
            "Tickets are chosen by held-out training images, never by the test set: set validation, such as 5000"
        )
