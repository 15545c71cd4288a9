"""A study: a claim, a recipe, settings that vary it, and seeds; one TOML file beside this one.

title = "..."
claim = "..."
seeds = [0, 1, 2]
[recipe]                # fields of paretorch.training.Recipe
network = "resnet20"
[settings.cs]           # optional: named variations of the recipe
pruning = "cs"
[settings.cs.vary]      # optional: one setting for each value (cs-0.9, cs-0.95), or combination of values, of these
sparsity = [0.9, 0.95]
"sparsity_options.init" = [0.0]
[[tickets]]             # instead of settings: ticket searches, as the table [tickets] of `pare tickets` has them
method = "imp"
"""

import difflib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import Any

from paretorch.errors import ConfigError, PareError
from paretorch.support.files import error_reason, parse_toml, read_text
from paretorch.training.recipe import Recipe
from paretorch.training.recipe_values import by_place, recipe_from

_MOST_SETTINGS = 10_000
_FIELDS: dict[str, tuple[type, str]] = {
    "title": (str, "a line of text"),
    "claim": (str, "a sentence: what the study shows"),
    "seeds": (list, "a list of whole numbers, such as [0, 1, 2]"),
    "recipe": (dict, "a table of recipe fields"),
    "settings": (dict, "a table with a table for each setting, such as [settings.cs]"),
    "tickets": (list, 'tables, each as [[tickets]] and below it method = "imp"'),
}
"""The fields of a study's file, and what each should be."""


@dataclass(frozen=True)
class Study:
    """What is claimed, and the runs that show it: every setting with every seed.

    families: for settings that were varied, the name they were varied from, such as "cs" for "cs-0.9".
    tickets: where there are any, the study is of these ticket searches, all under the one recipe.
    """

    name: str
    title: str
    claim: str
    seeds: tuple[int, ...]
    settings: Mapping[str, Recipe]
    families: Mapping[str, str] = field(default_factory=dict)
    tickets: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.seeds)) < len(self.seeds):
            listed = ", ".join(map(str, self.seeds))
            raise ConfigError(f"A study runs each of its seeds once: give each once, not {listed}")

    def family(self, setting: str) -> str:
        """The name under which this setting is compared with others."""
        return self.families.get(setting, setting)

    def only(self, patterns: Sequence[str]) -> "Study":
        """The settings whose name or family matches one of the patterns."""
        for pattern in patterns:
            if not any(self._matches(setting, pattern) for setting in self.settings):
                known = ", ".join(dict.fromkeys(self.family(setting) for setting in self.settings))
                raise ConfigError(f"No setting of {self.name} matches {pattern!r}; there are: {known}")
        chosen = {
            setting: recipe
            for setting, recipe in self.settings.items()
            if any(self._matches(setting, pattern) for pattern in patterns)
        }
        return replace(self, settings=chosen)

    def _matches(self, setting: str, pattern: str) -> bool:
        return fnmatchcase(setting, pattern) or self.family(setting) == pattern

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
    """A study by name, or by the path of its file, with `changes` made to the recipe of every setting.

    A file is a study of its own if its name ends in .toml. The study is called as the file is, without .toml.
    """
    if name.endswith(".toml"):
        return _read_study(Path(name), changes)
    if name not in study_names():
        close = difflib.get_close_matches(name, study_names(), n=3) or study_names()
        raise ConfigError(
            f"There is no study {name!r}; there are: {', '.join(close)}; a study of your own is a file, such as mine.toml"
        )
    return parse_study(name, (files(__package__) / f"{name}.toml").read_text(encoding="utf-8"), changes)


def _read_study(path: Path, changes: Mapping[str, Any] | None) -> Study:
    if path.stem in study_names():
        raise ConfigError(f"{path}: {path.stem} is a study of the package; give the file another name")
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"Cannot read the study {path}: {error_reason(error)}") from error
    return parse_study(path.stem, text, changes)


def parse_study(name: str, text: str, changes: Mapping[str, Any] | None = None) -> Study:
    """A study from the text of its file."""
    try:
        content = parse_toml(text)
        _check(name, content)
        base, settings = content["recipe"], content.get("settings", {"run": {}})
        recipes: dict[str, Recipe] = {}
        families: dict[str, str] = {}
        for family, given in settings.items():
            for setting, values in _variations(family, given):
                source = f"the study {name}, setting {setting}"
                recipes[setting] = _changed(recipe_from(by_place(base, values), source), changes or {}, source)
                families[setting] = family
        seeds, tickets = tuple(content["seeds"]), tuple(content.get("tickets", ()))
        return Study(name, content["title"], content["claim"], seeds, recipes, families, tickets)
    except PareError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ConfigError(f"The study {name} cannot be read: {error}") from error


def _check(name: str, content: Mapping[str, Any]) -> None:
    """Refuse a file that is not of the form that the head of this module shows, by the name of what is wrong."""
    said = f"The study {name}"
    if missing := [key for key in ("title", "claim", "seeds", "recipe") if key not in content]:
        raise ConfigError(f"{said} cannot be read: it has no {missing[0]}; it needs title, claim, seeds and [recipe]")
    if unknown := sorted(content.keys() - _FIELDS.keys()):
        raise ConfigError(f"{said} has an unknown field {unknown[0]!r}; known are {', '.join(_FIELDS)}")
    for key, (kind, example) in _FIELDS.items():
        if key in content and not (isinstance(content[key], kind) and content[key]):
            raise ConfigError(f"{said}: {key} should be {example}")
    if not all(type(seed) is int and seed >= 0 for seed in content["seeds"]):
        raise ConfigError(f"{said}: seeds should be whole numbers, 0 or more, not {content['seeds']}")
    if "tickets" in content and "settings" in content:
        raise ConfigError(
            f"{said} has [settings] and [[tickets]]: give one of them, and the other in a study of its own"
        )
    if not all(isinstance(table, dict) for table in content.get("tickets", ())):
        raise ConfigError(f"{said}: tickets should be {_FIELDS['tickets'][1]}")
    for setting, given in content.get("settings", {}).items():
        _check_setting(f"{said}, setting {setting}", setting, given)


def _check_setting(said: str, name: str, given: Any) -> None:
    if not isinstance(given, dict):
        raise ConfigError(f"{said} should be a table of recipe fields, such as [settings.{name}]")
    if not name or "/" in name or name.startswith("."):
        raise ConfigError(f"{said}: its runs have folders of that name; use letters, digits and -")
    vary = given.get("vary", {})
    if not isinstance(vary, dict) or not all(isinstance(values, list) and values for values in vary.values()):
        raise ConfigError(f"{said}: vary should be a table of lists, such as sparsity = [0.9, 0.95]")


def _variations(family: str, given: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and values of each setting that `vary` makes of one; without it, of the one."""
    fixed = {key: value for key, value in given.items() if key != "vary"}
    vary: Mapping[str, list[Any]] = given.get("vary", {})
    if math.prod(len(values) for values in vary.values()) > _MOST_SETTINGS:
        raise ConfigError(f"{family} varies into more than {_MOST_SETTINGS:,} settings: give fewer values")
    for chosen in itertools.product(*vary.values()):
        values = by_place(fixed, dict(zip(vary, chosen, strict=True)))
        yield "-".join([family, *(f"{one:g}" if isinstance(one, float) else str(one) for one in chosen)]), values


def _changed(recipe: Recipe, changes: Mapping[str, Any], source: str) -> Recipe:
    """The recipe with the changes; a dense one has nothing to fine-tune, so that change passes it by."""
    values = by_place(recipe.as_dict(), changes)
    bare = recipe_from({**values, "finetune": 0}, source)
    return recipe_from(values, source) if bare.compresses else bare
