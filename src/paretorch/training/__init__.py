"""The fast loop, its checkpoints and run folders."""

from paretorch.training.fit import Trainer
from paretorch.training.folder import RunFolder
from paretorch.training.launch import train
from paretorch.training.recipe import Recipe
from paretorch.training.run import prepare
from paretorch.training.runtime import Runtime
from paretorch.training.tasks import Task
from paretorch.training.tasks.images import ImageClassification
from paretorch.training.tracking import Tracking

__all__ = ["ImageClassification", "Recipe", "RunFolder", "Runtime", "Task", "Tracking", "Trainer", "prepare", "train"]
