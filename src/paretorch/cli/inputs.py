"""What a run folder says of a run: its recipe, its data, the shape of its inputs."""

import contextlib
from pathlib import Path
from typing import Any

from paretorch.errors import ArtefactError, ConfigError
from paretorch.support.files import read_json
from paretorch.training.recipe import Recipe
from paretorch.training.recipe_values import by_place, stored_recipe
from paretorch.training.tasks.choose import latent_of

SHAPES = {"digits": (1, 8, 8), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}
"""Of one image of a data set."""


def recipe_of(folder: Path) -> Recipe:
    """The recipe of a run."""
    try:
        return stored_recipe(read_json(folder / "config.json")["recipe"], f"{folder}/config.json")
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtefactError(f"{folder}/config.json is not the configuration of a run") from error


def data_of(folder: Path) -> str:
    """The data set of the run in that folder, or of the runs below it; empty where there is none, or several are."""
    files = [folder / "config.json"] if (folder / "config.json").exists() else sorted(folder.glob("*/config.json"))
    found = {_data_in(file) for file in files}
    return found.pop() if len(found) == 1 else ""


def shape_of(folder: Path) -> tuple[int, ...] | None:
    """Of one input of the run there: an image of its data, or the noise of a generator; None where it is neither."""
    with contextlib.suppress(ArtefactError, ConfigError):
        if (latent := latent_of(recipe_of(folder))) is not None:
            return (latent,)
    return SHAPES.get(data_of(folder))


def _data_in(file: Path) -> str:
    try:
        config: dict[str, Any] = read_json(file)
        return str(by_place(config["recipe"])["data.name"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError):
        return ""
