"""From a file and the options of a command to the recipe of a run."""

from pathlib import Path
from typing import Any

from paretorch.training.recipe import Recipe, read_config, recipe_from

_HELD_OUT = {"digits": 200, "ptb": 1, "ptb-char": 1, "multi30k": 1}


def given(**flags: Any) -> dict[str, Any]:
    """The options that were not left out."""
    return {name: value for name, value in flags.items() if value is not None}


def make_recipe(config: Path | None, flags: dict[str, Any]) -> Recipe:
    """Defaults, then the file, then the flags."""
    values: dict[str, Any] = {} if config is None else read_config(config)
    if isinstance(values.get("recipe"), dict):  # the config.json of a run
        values = values["recipe"]
    return recipe_from({**values, **flags}, source_of(config))


def source_of(config: Path | None) -> str:
    """What to name in errors: the file, where there is one."""
    return "the command line" if config is None else str(config)


def held_out(data: str) -> int:
    """How many training images to judge by; text has a validation part, which any number above 0 chooses."""
    return _HELD_OUT.get(data, 5000)
