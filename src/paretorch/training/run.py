"""A whole run from a recipe: network, data, teacher and plan, training, the artefact and the report."""

import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from paretorch.errors import ArtefactError, ConfigError
from paretorch.support.eval_mode import in_eval, run_example
from paretorch.support.inputs import ModelCall, main_output
from paretorch.training.checkpoint import Checkpoint
from paretorch.training.compression import SAMPLED_MASKS, attach
from paretorch.training.distillation import Teacher, distillation_loss
from paretorch.training.files import alone_in
from paretorch.training.finish import finish, read_result
from paretorch.training.fit import Trainer
from paretorch.training.folder import RunFolder, check_folder
from paretorch.training.networks import build_network, is_zoo, load_weights
from paretorch.training.optimizers import clip_gradients
from paretorch.training.recipe import Recipe
from paretorch.training.recipe_values import changed, stored_recipe
from paretorch.training.runtime import Runtime, fast_on_gpu, own_random
from paretorch.training.tasks import ImageTask, StatefulTask, Task, runtime_for
from paretorch.training.tasks.batches import BatchTask
from paretorch.training.tasks.choose import choose
from paretorch.training.tasks.images import Classification
from paretorch.training.tasks.language import CARRIED
from paretorch.training.tasks.translation import Translation
from paretorch.training.tracking import require_trackers

if TYPE_CHECKING:
    from paretorch.core.plan import Plan
    from paretorch.zoo.data import Images


@dataclass(frozen=True)
class Setup:
    """Everything that a recipe names, built."""

    model: nn.Module
    task: Task
    plan: "Plan | None"
    device: torch.device


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto" is the first GPU of NVIDIA, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{name!r} is no device; use cpu, cuda, cuda:1 or mps") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"Training runs on cpu, cuda and mps, not on {name!r}")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("There is no Apple GPU here; use --device cpu")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("There is no usable GPU here; use --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"There is no {name} here: the GPUs are numbered from 0 to {torch.cuda.device_count() - 1}")
    return device


def prepare(recipe: Recipe, runtime: Runtime, images: "Images | None" = None) -> Setup:
    """Build the network (from the recipe's seed), load the data unless given, attach what is to be compressed."""
    device = choose_device(runtime.device)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # steps are captured and replayed on the streams of the current device
    task, wanted = choose(recipe, runtime, device, images)
    if is_zoo(recipe.network):
        _check_options(recipe, wanted)
    if recipe.compression.pruning == "amc":
        _check_search(recipe, task)
    if recipe.compression.pruning in SAMPLED_MASKS and isinstance(task, ImageTask):
        raise ConfigError(
            f"{recipe.compression.pruning} draws masks and keeps that of the lowest loss, which says nothing about a generator: "
            f"choose another pruning"
        )
    if recipe.compression.samples > 1 and not getattr(task, "splits", False):
        raise ConfigError(
            f"precision_options.samples splits batches, which those of {recipe.data.name} cannot be: leave it out"
        )
    with own_random(device):
        torch.manual_seed(recipe.seed)
        return _build(recipe, task, wanted, device)


def _build(recipe: Recipe, task: Task, wanted: dict[str, Any], device: torch.device) -> Setup:
    model = build_network(recipe.network, recipe.network_options, wanted)
    if recipe.start is not None:
        load_weights(model, Path(recipe.start))
    model = model.to(device)
    check_fit(model, task, recipe, wanted)
    set_teacher(task, model, recipe, wanted)
    # Faster on GPUs, and on CPUs too: ResNet-20 takes three quarters of the time there.
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Setup(model, task, attach(model, recipe, steps=recipe.epochs * task.steps, example=task.example()), device)


def _check_options(recipe: Recipe, wanted: dict[str, Any]) -> None:
    for name, value in wanted.items():
        given = recipe.network_options.get(name, value)
        if type(given) is int and (given < value or (name == "channels" and given != value)):
            rule = f"{name} must be {value}" if name == "channels" else f"{name} must be at least {value}"
            raise ConfigError(
                f"network_options: for {recipe.data.name} {rule}, not {given}; leave it out to have just that"
            )


def check_fit(model: nn.Module, task: Task, recipe: Recipe, wanted: dict[str, Any]) -> None:
    """Refuse a network that cannot take the data, or whose outputs are not what the task needs."""
    if isinstance(task, BatchTask):
        task.check(model, recipe.network)
    elif isinstance(task, Classification):
        found = _run_image(model, task.example()[:1], recipe)
        what = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        with suppress(ConfigError):  # what has no main output is named below
            found = main_output(found)
        if not isinstance(found, Tensor) or found.dim() != 2:
            raise ConfigError(
                f"{recipe.network} gives {what} for images of {recipe.data.name}: return logits [rows, classes], or write a --task"
            )
        if found.shape[1] < wanted["classes"]:
            raise ConfigError(
                f"{recipe.network} gives {found.shape[1]} classes, and {recipe.data.name} has labels up to {wanted['classes'] - 1}: "
                f"make its last layer {wanted['classes']} wide"
            )


def _run_image(model: nn.Module, image: Tensor, recipe: Recipe) -> Any:
    try:
        with in_eval(model):
            return run_example(model, image.float())
    except ConfigError as error:
        may = "channels" in inspect.signature(type(model)).parameters and "channels" in str(error)
        hint = f'; try network_options={{"channels": {image.shape[1]}}}' if may else ""
        raise ConfigError(f"{recipe.network} cannot take the images of {recipe.data.name}: {error}{hint}") from error


def _check_search(recipe: Recipe, task: Task) -> None:
    if not recipe.data.validation:
        raise ConfigError("amc searches by held-out training images, never by the test set: set validation=5000, say")
    if "accuracy" not in task.tallies:
        raise ConfigError(f"amc searches by accuracy, which {recipe.data.name} does not have; choose another pruning")


def trainer_of(setup: Setup, recipe: Recipe, folder: RunFolder, runtime: Runtime) -> Trainer:
    """The loop for a setup: with what its task asks for, and with the recipe's clipping."""
    runtime = runtime_for(runtime, setup.task)
    if isinstance(setup.task, StatefulTask):
        setup.task.attach(setup.model)
    trainer = Trainer(setup.model, setup.task, recipe, folder, plan=setup.plan, runtime=runtime, device=setup.device)
    if recipe.optimizer.clip_norm is not None:
        clip_gradients(trainer.optimizer, recipe.optimizer.clip_norm)
    return trainer


def train(recipe: Recipe, out: Path, runtime: Runtime | None = None, *, resume: bool = False) -> dict[str, Any]:
    """Run a recipe to its end in the folder `out`; returns the result: metrics, bytes, sparsity, bits."""
    runtime = runtime or Runtime()
    check_folder(out, recipe, resume=resume)
    if resume and (result := read_result(out)) is not None:
        return result
    # Everything that a wrong recipe can break comes before the folder is made.
    require_trackers(runtime.track)
    setup = prepare(recipe, runtime)
    with own_random(setup.device), fast_on_gpu(setup.device), alone_in(out):
        folder = RunFolder(out, recipe, resume=resume, device=setup.device)
        last = trainer_of(setup, recipe, folder, runtime).run(resume=resume)
        if isinstance(setup.task, StatefulTask):
            setup.task.release(setup.model)
        test = (
            choose(changed(recipe, {"data.validation": 0}), runtime, setup.device)[0]
            if recipe.data.validation
            else None
        )
        return finish(setup.model, setup.task, setup.plan, folder, last, test, recipe.compression.norms)


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
