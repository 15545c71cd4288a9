"""From a file and the options of a command to the recipe of a run."""

from pathlib import Path
from typing import Any

from paretorch.errors import ConfigError
from paretorch.training.recipe import Recipe
from paretorch.training.recipe_keys import by_place
from paretorch.training.recipe_values import read_config, recipe_from

_HELD_OUT = {"digits": 200, "ptb": 1, "ptb-char": 1, "multi30k": 1}


def given(**flags: Any) -> dict[str, Any]:
    """The options that were not left out."""
    return {name: value for name, value in flags.items() if value is not None}


def make_recipe(config: Path | None, flags: dict[str, Any], *, holds_out: bool = False) -> Recipe:
    """Defaults, then the file, then the flags; `holds_out`: with data to judge by, where neither says how much."""
    values: dict[str, Any] = {} if config is None else read_config(config)
    if isinstance(values.get("recipe"), dict):  # the config.json of a run
        values = by_place(values["recipe"])
        if values.get("data.validation") == 0:  # it has every field, whether anybody asked for it or not
            del values["data.validation"]
    values = by_place(values, flags)
    recipe = recipe_from(with_held_out(values) if holds_out else values, source_of(config))
    require_drops(recipe, flags)
    return recipe


def require_drops(recipe: Recipe, flags: dict[str, Any]) -> None:
    """Refuse milestones that were asked for where the schedule has no drops; files may have them for other schedules."""
    if by_place(flags).get("schedule.milestones") and recipe.schedule.name != "steps":
        raise ConfigError(f"The schedule {recipe.schedule.name} has no drops at milestones: add --schedule steps.")


def with_held_out(values: dict[str, Any]) -> dict[str, Any]:
    """The fields, by place, with the number of training images to judge by, where they have none.

    A 0 that was asked for stays; text has a validation part, which any number above 0 chooses.
    """
    return {"data.validation": _HELD_OUT.get(str(values.get("data.name")), 5000), **values}


def source_of(config: Path | None) -> str:
    """What to name in errors: the file, where there is one."""
    return "the command line" if config is None else str(config)
