"""What a recipe's `data` says of its task: options, the size of a batch, how much is held out."""

from collections.abc import Mapping
from typing import Any

from paretorch.errors import ConfigError
from paretorch.training.recipe import DataRecipe, Recipe

_TENTH = 10  # of the training images, what a validation of 1 holds out of a user's folder


def data_options(recipe: Recipe, usual: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe's `data_options` over the usual ones; unknown names and wrong types are refused by name."""
    given = dict(recipe.data.options or {})
    if unknown := sorted(set(given) - set(usual)):
        known = ", ".join(usual) or "none"
        raise ConfigError(f"{recipe.data.name} has no data option {unknown[0]!r}; it has: {known}")
    words = {bool: "true or false", str: "a text", list: "a list of whole numbers from 1", int: "a whole number from 1"}
    for name, value in given.items():
        whole = [value] if type(value) is int else value if type(value) is list else []
        if type(value) is not type(usual[name]) or not all(type(one) is int and one >= 1 for one in whole):
            wanted = words[type(usual[name])]
            raise ConfigError(f"The data option {name} of {recipe.data.name} must be {wanted}, not {value!r}")
    return {**usual, **given}


def batch_of(recipe: Recipe, count: int) -> int:
    """The recipe's batch; the default one is halved until a user's own images, `count` to train with, are enough for it."""
    batch = recipe.data.batch
    if ":" in recipe.data.name and batch == DataRecipe.batch:
        while batch > count:
            batch //= 2  # what divides the default, such as a number of ranks, divides most of its halves too
    return batch


def held_out_of(recipe: Recipe, count: int) -> int:
    """How many of `count` training images are held out to validate with."""
    tenth = ":" in recipe.data.name and recipe.data.validation == 1
    return max(1, count // _TENTH) if tenth else recipe.data.validation
