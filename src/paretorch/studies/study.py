"""A study: a claim, a recipe, settings that vary it, and seeds; one TOML file beside this one.

title = "..."
claim = "..."
seeds = [0, 1, 2]
[recipe]                # fields of paretorch.training.Recipe
network = "resnet20"
[settings.sparse]       # optional: named variations of the recipe
sparsity = 0.95
"""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from paretorch.errors import ConfigError
from paretorch.training.recipe import Recipe, recipe_from


@dataclass(frozen=True)
class Study:
    """What is claimed, and the runs that show it: every setting with every seed."""

    name: str
    title: str
    claim: str
    seeds: tuple[int, ...]
    settings: Mapping[str, Recipe]

    def jobs(self) -> list[tuple[str, Recipe]]:
        """All runs by name, '<setting>-seed<seed>'."""
        return [
            (f"{setting}-seed{seed}", replace(recipe, seed=seed))
            for seed in self.seeds
            for setting, recipe in self.settings.items()
        ]


def study_names() -> list[str]:
    """The studies that come with the package."""
    return sorted(
        each.name.removesuffix(".toml") for each in files(__package__).iterdir() if each.name.endswith(".toml")
    )


def load_study(name: str, changes: Mapping[str, Any] | None = None) -> Study:
    """A study by name, with `changes` made to the recipe of every setting."""
    if name not in study_names():
        close = difflib.get_close_matches(name, study_names(), n=3) or study_names()
        raise ConfigError(f"There is no study {name!r}; there are: {', '.join(close)}.")
    return parse_study(name, (files(__package__) / f"{name}.toml").read_text(encoding="utf-8"), changes)


def parse_study(name: str, text: str, changes: Mapping[str, Any] | None = None) -> Study:
    """A study from the text of its file."""
    try:
        content = tomllib.loads(text)
        base, settings = content["recipe"], content.get("settings", {"run": {}})
        recipes = {
            setting: recipe_from({**base, **varied, **(changes or {})}, f"the study {name}, setting {setting}")
            for setting, varied in settings.items()
        }
        return Study(name, content["title"], content["claim"], tuple(content["seeds"]), recipes)
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise ConfigError(f"The study {name} cannot be read: {error}.") from error
