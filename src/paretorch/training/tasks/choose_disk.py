"""From a recipe to a task on images that stay on the disk: imagenet, webdataset:PATTERN, and folder:PATH with data.options.stream."""

from collections.abc import Mapping
from typing import Any

from paretorch.errors import ConfigError
from paretorch.training.recipe import Recipe
from paretorch.training.runtime import Runtime
from paretorch.training.tasks.disk_images import DiskClassification
from paretorch.training.tasks.options import batch_of, data_options, held_out_of
from paretorch.zoo.data.on_disk import DiskImages, open_folder, open_imagenet, open_shards
from paretorch.zoo.data.reading import in_processes, usual_workers
from paretorch.zoo.data.registry import data_root
from paretorch.zoo.data.views import View

IMAGENET = "imagenet"
"""The set that is read from `--root`/imagenet."""
SHARDS = "webdataset:"
_USUAL_SIZE = 224
_VIEW = {"size": _USUAL_SIZE, "resize": 0, "min_area": 8, "jitter": False}
_IN_MEMORY = {"size": 0, "test_percent": 20, "split_seed": 1}
_FROM_DISK = {"stream": False, "resize": 0, "min_area": 8, "jitter": False}
FOLDER_OPTIONS: Mapping[str, Any] = {**_IN_MEMORY, **_FROM_DISK}
"""What data.options of folder:PATH may have, and the defaults; a size of 0 is that of the images in memory, and 224 on the disk."""


def is_on_disk(recipe: Recipe) -> bool:
    """Whether the images are read as they are needed, rather than all at the start."""
    name, options = recipe.data.name, recipe.data.options or {}
    return name == IMAGENET or name.startswith(SHARDS) or (name.startswith("folder:") and bool(options.get("stream")))


def has_own_task(data: str) -> bool:
    """Whether data of this name are no tensors of the zoo: only a task can read a user's own, and ImageNet."""
    return ":" in data or data == IMAGENET


def in_memory(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a folder whose images go into memory; those that only others have are refused."""
    if wrong := [name for name, usual in _FROM_DISK.items() if options[name] != usual]:
        raise ConfigError(
            f"data.options.{wrong[0]} is for images that are read from the disk as they are needed: add --set data.options.stream=true"
        )
    return {name: options[name] for name in _IN_MEMORY}


def choose_on_disk(recipe: Recipe, runtime: Runtime, how: dict[str, Any]) -> tuple[DiskClassification, dict[str, Any]]:
    """The task, and the number of classes."""
    if recipe.task not in (None, "classify"):
        raise ConfigError(f"--task {recipe.task}: images that stay on the disk are classified; leave --task out")
    for name, value in (("pad", recipe.data.pad), ("cutout", recipe.data.cutout)):
        if value:
            raise ConfigError(f"data.{name} is for images in memory; those on the disk have data.options.min_area")
    workers = usual_workers() if runtime.workers is None else runtime.workers
    images, options = _open(recipe, runtime, workers)
    if recipe.data.validation:
        images = images.validation(held_out_of(recipe, len(images.train.labels)), seed=0)
    flip = True if recipe.data.flip is None else recipe.data.flip
    view = View(options["size"] or _USUAL_SIZE, options["resize"], options["min_area"], flip, options["jitter"])
    task = DiskClassification(
        images,
        view,
        workers=workers,
        batch=batch_of(recipe, len(images.train.labels)),
        label_smoothing=recipe.data.label_smoothing,
        **how,
    )
    return task, {"classes": images.classes}


def _open(recipe: Recipe, runtime: Runtime, workers: int) -> tuple[DiskImages, dict[str, Any]]:
    name, run = recipe.data.name, in_processes(workers)
    if name == IMAGENET:
        return open_imagenet(data_root(runtime.root) / IMAGENET, run), data_options(recipe, _VIEW)
    if name.startswith(SHARDS):
        options = data_options(recipe, {**_VIEW, "test": "", "classes": 0})
        return open_shards(name.removeprefix(SHARDS), options["test"], run, classes=options["classes"]), options
    options = data_options(recipe, FOLDER_OPTIONS)
    path = name.removeprefix("folder:")
    return open_folder(path, test_percent=options["test_percent"], split_seed=options["split_seed"]), options
