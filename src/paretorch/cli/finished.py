"""A finished network and the data of its run, for commands that measure or convert it; network and data may be the user's own.

A file names its network only if that is one of the zoo. Any other is built from what the command line says, or the config.json
of the run, and filled from the file.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paretorch import deploy
from paretorch.cli.inputs import SHAPES, data_of, recipe_of, shape_of
from paretorch.errors import ConfigError
from paretorch.support.inputs import Example, read_example
from paretorch.training.networks import build_network, load_weights
from paretorch.training.recipe import Recipe
from paretorch.training.recipe_values import changed, recipe_from
from paretorch.training.run import choose_device
from paretorch.training.runtime import Runtime
from paretorch.training.tasks import Task
from paretorch.training.tasks.choose import choose
from paretorch.training.tasks.choose_disk import has_own_task

FLAGS = ("network", "data", "task")
"""Flags of the recipe that say what a file does not."""
HELP = {
    "network": "The network of the file, if it is none of the zoo: FILE.py:FUNCTION, hf:NAME or timm:NAME.",
    "data": "Measure the accuracy on digits, cifar10, cifar100, folder:PATH, FILE.py:FUNCTION or hf:NAME.",
    "task": "What the network does with these data: classify, language, regress or FILE.py:FUNCTION.",
}
DEFAULT = {"network": "that of the run", "data": "", "task": "that of the run, or of the data"}


@dataclass(frozen=True)
class Finished:
    """A file with the weights of a network, and what is known of the run that made it.

    Args:
        path: An artefact, or a file of weights as `--weights` takes them.
        flags: What the command line says of the network and its data, by the places of the recipe.
    """

    path: Path
    flags: Mapping[str, Any]
    root: str | None = None
    device: str = "cpu"

    @property
    def data(self) -> str:
        """The data set of the command line, or of the run; empty if neither names one."""
        return self.flags.get("data.name") or data_of(self.path.parent)

    @functools.cached_property
    def recipe(self) -> Recipe:
        """That of the run in the folder of the file, if there is one, with what the command line says instead."""
        if (self.path.parent / "config.json").exists():
            recipe = recipe_of(self.path.parent)
            if self.data != recipe.data.name:
                recipe = changed(recipe, {"data.options": None})  # which are of other data
            return changed(recipe, self.flags)
        return recipe_from(self.flags, "the command line")

    @property
    def names_its_network(self) -> bool:
        """Whether the file says which network of the zoo it is."""
        return self.path.suffix == ".pare" and "zoo" in deploy.artefact.open_artefact(self.path)[1]

    @property
    def own_data(self) -> bool:
        """Whether the data are a user's own."""
        return has_own_task(self.data)

    def network(self) -> nn.Module:
        """The network, in eval mode on the CPU."""
        if self.names_its_network:
            return deploy.load(self.path).eval()
        module = self.built()
        if self.path.suffix == ".pare":
            return deploy.load(self.path, into=module).eval()
        load_weights(module, self.path, option="the file")
        return module.eval()

    def built(self) -> nn.Module:
        """The network as it was before it was compressed."""
        if "network" not in self.flags and not (self.path.parent / "config.json").exists():
            raise ConfigError(
                f"{self.path} names no network of the zoo: add --network FILE.py:FUNCTION, hf:NAME or timm:NAME"
            )
        # Without the data nothing says how many classes there are.
        wanted = self._chosen[1] if self.data else {}
        return build_network(self.recipe.network, self.recipe.network_options, wanted)

    @property
    def task(self) -> Task:
        """The task of the run, which evaluates on its test part."""
        return self._chosen[0]

    def example(self, shape: tuple[int, ...] | None, rows: int) -> Example | None:
        """Inputs of the network: zeros of a shape, or of that of the run, or inputs of a user's own data; None if nothing says."""
        size = shape or (None if self.own_data else shape_of(self.path.parent) or SHAPES.get(self.data))
        if size is not None:
            return torch.zeros(rows, *size)
        if not self.own_data:
            return None
        found: Any = self.task.example()
        if not isinstance(found, torch.Tensor):
            return read_example(found).rows(lambda tensor: tensor[:rows])
        return (found.float() if found.is_floating_point() else found)[:rows]

    def inputs(self, rows: int) -> list[Any]:
        """Training batches of an epoch as the network sees them, with so many rows or more if there are."""
        found = getattr(self.task, "inputs", None)
        if found is None:
            raise ConfigError(f"--data {self.data} has no inputs to look at")
        each = read_example(found(0, 1)[0], dims=0).batch
        return list(found(0, min(self.task.steps, -(-rows // max(1, each)))))

    @functools.cached_property
    def _chosen(self) -> tuple[Task, dict[str, Any]]:
        recipe = changed(self.recipe, {"data.validation": 0, "dtype": "fp32"})
        return choose(recipe, Runtime(root=self.root, device=self.device), choose_device(self.device))


def find_finished(
    path: Path, flags: Mapping[str, Any], root: str | Path | None = None, device: str = "cpu"
) -> Finished:
    """Return the finished network at a path, a run folder or a file, with what the command line says of it."""
    file = path / "model.pare" if path.is_dir() else path
    return Finished(file, flags, None if root is None else str(root), device)
