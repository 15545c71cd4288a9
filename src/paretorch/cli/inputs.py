"""What a run folder says of a run: its recipe, its data, the shape of its inputs."""

import json
from pathlib import Path
from typing import Any

from paretorch.errors import ArtefactError, ConfigError
from paretorch.training.recipe import Recipe, recipe_from

SHAPES = {"digits": (1, 8, 8), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}
"""Of one image of a data set."""


def recipe_of(folder: Path) -> Recipe:
    """The recipe of a run."""
    try:
        return recipe_from(json.loads((folder / "config.json").read_text())["recipe"], str(folder))
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtefactError(f"{folder}/config.json is not the configuration of a run.") from error


def data_of(folder: Path) -> str:
    """The data set of the run in that folder, or of the runs below it; empty where there is none, or several are."""
    files = [folder / "config.json"] if (folder / "config.json").exists() else sorted(folder.glob("*/config.json"))
    found = {_data_in(file) for file in files}
    return found.pop() if len(found) == 1 else ""


def _data_in(file: Path) -> str:
    try:
        config: dict[str, Any] = json.loads(file.read_text())
        return str(config["recipe"]["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
