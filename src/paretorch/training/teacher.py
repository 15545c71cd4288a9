"""The teacher of a run, from the file that its recipe names: an artefact, or the checkpoint of a dense run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.errors import ArtefactError, ConfigError
from paretorch.support.eval_mode import in_eval, run_example
from paretorch.support.inputs import ModelCall
from paretorch.training.checkpoint import Checkpoint
from paretorch.training.distillation import Teacher, distillation_loss
from paretorch.training.networks import build_network
from paretorch.training.recipe import Recipe
from paretorch.training.recipe_values import stored_recipe
from paretorch.training.task import Task
from paretorch.training.tasks.language import CARRIED
from paretorch.training.tasks.translation import Translation


def set_teacher(task: Task, model: nn.Module, recipe: Recipe, wanted: Mapping[str, Any]) -> None:
    """Let the task mix in the loss of the recipe's teacher, if it names one; raise if their outputs do not match.

    Args:
        model: The student, on its device and not compressed yet.
        wanted: Options of networks that follow from the data.
    """
    asked = recipe.distillation
    if asked.teacher is None:
        return
    if not hasattr(task, "teacher"):
        raise ConfigError(f"{recipe.data.name} is not learned from a teacher: leave --teacher out")
    network = _network(Path(asked.teacher), recipe, wanted)
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    teacher = Teacher(network, asked.alpha, asked.temperature)
    teacher.prepare(model)
    try:
        _compare(teacher, model, task)
    except ConfigError as error:
        raise ConfigError(f"the teacher {asked.teacher} does not fit {recipe.network}: {error}") from error
    task.teacher = teacher


def _compare(teacher: Teacher, model: nn.Module, task: Task) -> None:
    example = task.example()
    inputs: Tensor = example.float() if example.is_floating_point() else example
    # A sentence of the source is a target as good as any.
    call = ModelCall((inputs, inputs) if isinstance(task, Translation) else (inputs,))
    with in_eval(model):
        distillation_loss(run_example(model, call), teacher.outputs(lambda network: run_example(network, call)))


def _network(path: Path, recipe: Recipe, wanted: Mapping[str, Any]) -> nn.Module:
    from paretorch import deploy

    if not path.is_file():
        raise ConfigError(f"there is no teacher {path}: give a model.pare, or the checkpoint.pt of a dense run")
    if path.suffix == ".pt":
        return _from_checkpoint(path, wanted)
    network, _ = deploy.artefact.open_artefact(path)
    if isinstance(network, nn.Module):
        return network
    # A file that names no network of the zoo has the weights of the student's.
    same = build_network(recipe.network, recipe.network_options, wanted)
    return deploy.load(path, into=same)


def _from_checkpoint(path: Path, wanted: Mapping[str, Any]) -> nn.Module:
    try:
        stored = Checkpoint.load(path, torch.device("cpu"))
        recipe = stored_recipe(stored.recipe, str(path))
    except ArtefactError as error:
        raise ConfigError(
            f"the teacher {path} is not a checkpoint of a run that can be read: give a model.pare"
        ) from error
    if stored.plan is not None:
        raise ConfigError(f"the teacher {path} is the checkpoint of a compressed run: give the model.pare beside it")
    network = build_network(recipe.network, recipe.network_options, wanted)
    try:
        network.load_state_dict({name: value for name, value in stored.model.items() if not name.startswith(CARRIED)})
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"the teacher {path} has not the weights of {recipe.network}: give a model.pare") from error
    return network
