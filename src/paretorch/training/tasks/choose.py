"""From a recipe's `data` to the task, and to what the network must be built with."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from paretorch.errors import ConfigError
from paretorch.training.networks import is_zoo
from paretorch.training.recipe import Recipe
from paretorch.training.runtime import Runtime
from paretorch.training.tasks import Task
from paretorch.training.tasks.batches import BatchTask
from paretorch.training.tasks.choose_disk import FOLDER_OPTIONS, IMAGENET, choose_on_disk, in_memory, is_on_disk
from paretorch.training.tasks.images import ImageClassification
from paretorch.training.tasks.options import batch_of, data_options, held_out_of
from paretorch.zoo.user_code import names_code

if TYPE_CHECKING:
    from paretorch.zoo.data import Augment, Images

Chosen = tuple[Task, dict[str, Any]]

_NETWORKS = {
    "multi30k": "transformer",
    "ptb": "lstm-300",
    "ptb-char": "lstm-300",
    "shortest-paths": "shortest-paths-cnn",
}
_GENERATOR = "dcgan-generator"
_GAN = {"loss": "hinge", "critic_steps": 2, "critic_width": 64, "samples": 10000, "features": ""}
_BPTT = {"ptb": 70, "ptb-char": 150}


def choose(recipe: Recipe, runtime: Runtime, device: torch.device, images: "Images | None" = None) -> Chosen:
    """The task, on `device`, and the options of the network that follow from the data."""
    how = {
        "seed": recipe.seed,
        "device": device,
        "autocast": recipe.dtype == "bf16" or (recipe.dtype == "auto" and device.type == "cuda"),
    }
    if names_code(recipe.data.name) or recipe.data.name.startswith("hf:"):
        return _loaders(recipe, how), {}
    if images is not None or recipe.data.name not in _NETWORKS:
        return _images(recipe, runtime, images, how)
    if recipe.task is not None:
        raise ConfigError(f"--task: {recipe.data.name} has a task of its own; leave --task out")
    usual = _NETWORKS[recipe.data.name]
    if is_zoo(recipe.network) and recipe.network.split("-")[0] != usual.split("-")[0]:
        raise ConfigError(f"{recipe.data.name} is learned by the network {usual}, not by {recipe.network!r}")
    if recipe.data.name == "multi30k":
        return _translation(recipe, runtime, how)
    return _grids(recipe, how) if recipe.data.name == "shortest-paths" else _text(recipe, runtime, how)


def latent_of(recipe: Recipe) -> int | None:
    """How many numbers of noise the network makes an image of; None where it makes none."""
    return recipe.network_options.get("latent", 100) if recipe.network == _GENERATOR else None


def _images(recipe: Recipe, runtime: Runtime, images: "Images | None", how: dict[str, Any]) -> Chosen:
    from paretorch import zoo

    if images is None and is_on_disk(recipe):
        return choose_on_disk(recipe, runtime, how)
    latent = latent_of(recipe)
    folder = recipe.data.name.startswith("folder:")
    options = data_options(recipe, FOLDER_OPTIONS if folder else {} if latent is None else _GAN)
    try:
        images = images or zoo.data.load(
            recipe.data.name, runtime.root, runtime.download, **(in_memory(options) if folder else {})
        )
    except ConfigError as error:
        if folder:
            raise
        raise ConfigError(f"{error} Of other kinds there are: {', '.join(sorted((*_NETWORKS, IMAGENET)))}") from error
    if recipe.data.validation:
        images = images.validation(held_out_of(recipe, len(images.train[1])), seed=0)
    if recipe.task not in (None, "classify"):
        return _image_batches(recipe, images, how), {"classes": images.classes}
    if latent is not None:
        return _gan(recipe, images, {"latent": latent, **options}, how)
    task = ImageClassification(
        images,
        batch=batch_of(recipe, len(images.train[1])),
        how=_augmentation(recipe),
        label_smoothing=recipe.data.label_smoothing,
        **how,
    )
    return task, {"classes": images.classes}


def _image_batches(recipe: Recipe, images: "Images", how: dict[str, Any]) -> Task:
    """Images as (inputs, labels), for a task of the user's own."""
    from paretorch.zoo.data import normalise
    from paretorch.zoo.data.user_data import Table

    parts = [
        {"inputs": normalise(pixels, images.mean, images.std, torch.float32), "labels": labels}
        for pixels, labels in (images.train, images.test)
    ]
    train, test = (Pairs(Table(part, recipe.data.batch, shuffle=i == 0)) for i, part in enumerate(parts))
    return BatchTask(train, test, kind=str(recipe.task), source=f"--data {recipe.data.name}", **how)


class Pairs:
    """Batches of a table of inputs and labels, as (inputs, labels)."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return ((batch["inputs"], batch["labels"]) for batch in self._table)


def _loaders(recipe: Recipe, how: dict[str, Any]) -> Task:
    from paretorch.zoo.data.user_data import table_loaders, user_loaders

    name = recipe.data.name
    if names_code(name):
        parts = user_loaders(name, recipe.data.options or {})
    else:
        data_options(recipe, {})
        parts = table_loaders(name, recipe.data.batch)
    if recipe.data.validation and parts.validation is None:
        raise ConfigError(f"--data {name} has no validation part to judge by: give train, validation and test")
    held_out = parts.validation if recipe.data.validation and parts.validation is not None else parts.test
    return BatchTask(parts.train, held_out, kind=recipe.task or "classify", source=f"--data {name}", **how)


def _gan(recipe: Recipe, images: "Images", options: dict[str, Any], how: dict[str, Any]) -> Chosen:
    from paretorch.training import optimizers
    from paretorch.training.tasks.gan import Gan

    def optimize(weights: list[Any]) -> torch.optim.Optimizer:
        return optimizers.build(
            recipe.optimizer, [{"params": weights, "weight_decay": recipe.optimizer.weight_decay}], recipe.optimizer.lr
        )

    channels = images.train[0].shape[1]
    return Gan(images, optimize, batch=recipe.data.batch, **options, **how), {"channels": channels}


def _augmentation(recipe: Recipe) -> "Augment":
    from paretorch.zoo.data import Augment

    # What may be done to a user's own images is theirs to say.
    usual = {"digits": (1, False)}.get(recipe.data.name, (0, False) if ":" in recipe.data.name else (4, True))
    pad = usual[0] if recipe.data.pad is None else recipe.data.pad
    return Augment(pad, usual[1] if recipe.data.flip is None else recipe.data.flip, recipe.data.cutout)


def _text(recipe: Recipe, runtime: Runtime, how: dict[str, Any]) -> Chosen:
    from paretorch.training.tasks.language import LanguageModel
    from paretorch.zoo.data import text

    options = data_options(recipe, {"bptt": _BPTT[recipe.data.name]})
    characters = recipe.data.name == "ptb-char"
    corpus = text.load("char" if characters else "word", runtime.root)
    task = LanguageModel(
        corpus,
        characters=characters,
        batch=recipe.data.batch,
        label_smoothing=recipe.data.label_smoothing,
        validation=recipe.data.validation > 0,
        **options,
        **how,
    )
    return task, {"vocabulary": len(corpus.vocabulary)}


def _translation(recipe: Recipe, runtime: Runtime, how: dict[str, Any]) -> Chosen:
    from paretorch.training.tasks.translation import Translation, load_multi30k

    options = data_options(recipe, {"vocabulary": 10000, "bleu": False})
    pairs = load_multi30k(runtime.root, options["vocabulary"])
    task = Translation(
        pairs,
        tokens=recipe.data.batch,
        label_smoothing=recipe.data.label_smoothing,
        validation=recipe.data.validation > 0,
        bleu=options["bleu"],
        **how,
    )
    return task, {"vocabulary": pairs.vocabulary}


def _grids(recipe: Recipe, how: dict[str, Any]) -> Chosen:
    from paretorch.training.tasks.shortest_paths import ShortestPaths, make_grids

    options = data_options(recipe, {"limit": 10, "limits": [], "count": 5000, "test_count": 1000, "size": 32})
    last, limits = options.pop("limit"), options.pop("limits")
    limits = limits or [last]
    if recipe.epochs % len(limits):
        raise ConfigError(f"{len(limits)} phases of equal length cannot share {recipe.epochs} epochs: use a multiple")
    phases = [make_grids(limit, **options, validation=recipe.data.validation) for limit in limits]
    return ShortestPaths(phases, epochs=recipe.epochs // len(limits), batch=recipe.data.batch, **how), {}
