"""One trial of `pare tune`: a learning rate and an ε, trained, and the error that they give, in trial.json of its folder."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from paretorch import zoo
from paretorch.errors import DivergenceError
from paretorch.support import checked_files
from paretorch.support.files import read_json, sweep
from paretorch.training.files import alone_in, write_atomically
from paretorch.training.folder import RunFolder
from paretorch.training.progress import headline
from paretorch.training.recipe import Recipe
from paretorch.training.recipe_values import changed
from paretorch.training.run import prepare, trainer_of
from paretorch.training.runtime import Runtime
from paretorch.training.tasks.images import IMAGES

# Of each metric, the error that is made of it, smaller the better: its name and its unit.
_ERRORS = {
    "test_accuracy": ("validation error", " %"),
    "test_f1": ("validation 100 − F1", " %"),
    "test_bleu": ("validation 100 − BLEU", ""),
    "test_bpc": ("validation bits per character", ""),
    "test_perplexity": ("validation perplexity", ""),
    "test_frechet": ("Fréchet distance", ""),
    "test_loss": ("validation loss", ""),
}


_RESULT = "trial.json"


class Trial:
    """Trains one setting into a folder of its own, from its checkpoint where an earlier worker left one."""

    def __init__(self, recipe: Recipe, runtime: Runtime, folder: Path) -> None:
        self.recipe, self.folder = recipe, folder
        self._runtime = runtime
        self._metric = "test_loss"
        self._limit = float("inf")
        self._images: Any = None

    def check(self) -> None:
        """Build everything once; the loss of the untrained network says what counts as divergence."""
        if self.recipe.data.name in IMAGES:
            self._images = zoo.data.load(self.recipe.data.name, self._runtime.root, self._runtime.download)
        setup = prepare(self.recipe, self._runtime, self._images)
        untrained = setup.task.evaluate(setup.model.eval())
        self._metric = headline(untrained)
        self._limit = 2 * untrained.get("test_loss", float("inf"))
        sweep(self.folder)

    def __call__(self, alpha: float, eps: float, beat: Callable[[], None]) -> float:
        """The error of a setting; `beat` is called after each epoch."""
        recipe = self.recipe_of(alpha, eps)
        setup = prepare(recipe, self._runtime, self._images)
        folder = _WatchedFolder(self.place(alpha, eps), recipe, setup.device, beat, self._limit)
        last = trainer_of(setup, recipe, folder, self._runtime).run(resume=True)
        error = self._error_of(float(last[self._metric]))
        checked_files.remove(folder.checkpoint)
        return error

    def train_once(self, alpha: float, eps: float) -> None:
        """Train a setting whose job this process has, and keep its error, or that it diverged, in its folder."""
        place = self.place(alpha, eps)
        with alone_in(place):
            if self.result(alpha, eps) is not None:
                return
            try:
                error: float | None = self(alpha, eps, lambda: None)
            except DivergenceError:
                error = None
            content = {"recipe": self.recipe_of(alpha, eps).as_dict(), "error": error}
            write_atomically(place / _RESULT, json.dumps(content).encode())

    def result(self, alpha: float, eps: float) -> float | None:
        """The error that is kept in a setting's folder, NaN if it diverged; None if there is none, or one of another recipe."""
        try:
            content = read_json(self.place(alpha, eps) / _RESULT)
            if content["recipe"] != json.loads(json.dumps(self.recipe_of(alpha, eps).as_dict())):
                return None
            return math.nan if content["error"] is None else float(content["error"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def place(self, alpha: float, eps: float) -> Path:
        """The folder of a setting."""
        return self.folder / f"lr{exactly(alpha)}-eps{exactly(eps)}"

    def recipe_of(self, alpha: float, eps: float) -> Recipe:
        """What is trained with a setting."""
        return changed(self.recipe, {"optimizer.lr": alpha, "optimizer.eps": eps or None})

    def _error_of(self, value: float) -> float:
        if self._metric in ("test_accuracy", "test_f1"):
            return 100 * (1 - value)
        return 100 - value if self._metric == "test_bleu" else value

    @property
    def error(self) -> tuple[str, str]:
        """The name of the error, and its unit."""
        return _ERRORS[self._metric]

    def describe(self, error: float) -> str:
        """The error with its name and unit."""
        label, unit = self.error
        return f"{label} {error:.4g}{unit}"


def exactly(value: float) -> str:
    """A number as briefly as it can be given back: rounded ones would be another setting."""
    return brief if float(brief := f"{value:g}") == value else repr(value)


class _WatchedFolder(RunFolder):
    """Says after each epoch that the worker lives, and ends what is worse than no training at all."""

    def __init__(
        self, path: Path, recipe: Recipe, device: torch.device, beat: Callable[[], None], limit: float
    ) -> None:
        super().__init__(path, recipe, resume=True, device=device)
        self._beat, self._limit = beat, limit

    def append(self, row: dict[str, Any]) -> int:
        self._beat()
        loss = row.get("loss", 0.0)
        if not loss <= self._limit:  # also: NaN
            raise DivergenceError(f"The loss is {loss:g}, twice that of the untrained network")
        return super().append(row)
