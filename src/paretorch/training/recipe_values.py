"""Recipes from plain values: files, stored runs, the command line.

Values may be flat, nested or dotted. Recipes were flat until 0.1.0: `lr` is `optimizer.lr` now, and the string `optimizer` is
`optimizer.name`. Run folders, studies, results and files of users still have the flat names, so every reader of plain values
goes through `by_place` first.
"""

import dataclasses
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from paretorch.errors import ArtefactError, ConfigError
from paretorch.support.files import parse_json, parse_toml, read_text
from paretorch.support.text import parse_bytes as parse_bytes
from paretorch.training.recipe import (
    CompressionRecipe,
    DataRecipe,
    DistillationRecipe,
    OptimizerRecipe,
    Recipe,
    ScheduleRecipe,
)

SECTIONS = ("data", "optimizer", "schedule", "compression", "distillation")

_FLAT = {
    "": ("network", "network_options", "start", "epochs", "finetune", "dtype", "seed"),
    "data.": ("validation", "batch", "pad", "flip", "cutout", "label_smoothing"),
    "optimizer.": ("lr", "momentum", "nesterov", "betas", "eps", "weight_decay", "clip_norm"),
    "schedule.": ("milestones", "factor", "warmup", "finetune_lr", "finetune_milestones"),
    "compression.": (
        "sparsity",
        "pruning",
        "sparsity_options",
        "bits",
        "quantization",
        "precision_options",
        "budget",
        "activation_bits",
        "activations",
        "activation_options",
        "sharing_options",
        "norms",
    ),
}
_RENAMED = {
    "data": "data.name",
    "data_options": "data.options",
    "optimizer": "optimizer.name",
    "schedule": "schedule.name",
    "finetune_schedule": "schedule.finetune_name",
}

PLACES: Mapping[str, str] = {
    **{name: section + name for section, names in _FLAT.items() for name in names},
    **_RENAMED,
}
"""The place of every flat name of 0.1.0."""

# Fields that are tables themselves: a dotted name may reach into them, as in sparsity_options.init.
_TABLES = tuple(place for name, place in PLACES.items() if name.endswith("_options"))


def place_of(name: str) -> str:
    """The dotted place of a field by its flat or dotted name; a name that is no field's stays as it is."""
    if name in PLACES:
        return PLACES[name]
    head, dot, rest = name.partition(".")
    # `sparsity_options.init` by the flat name of the table; `data.init` is a place already.
    return f"{PLACES[head]}.{rest}" if dot and PLACES.get(head) in _TABLES else name


def by_place(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all sources by their dotted place, later sources over earlier ones.

    A source may be flat, nested, dotted, or a mixture. `sparsity_options = {...}` replaces the table of an earlier source,
    `sparsity_options.init` sets one entry of it. Names that are no field's are kept, for the caller to refuse.

    Example:
        >>> by_place({"lr": 0.1, "data": "digits"}, {"optimizer": {"lr": 0.2}})
        {'optimizer.lr': 0.2, 'data.name': 'digits'}
    """
    found: dict[str, Any] = {}
    for source in sources:
        for place, value in _places_in(source).items():
            table = next((each for each in _TABLES if place.startswith(each + ".")), None)
            if table is None:
                found[place] = value
            else:
                before = found.get(table)
                entries = before if isinstance(before, Mapping) else {}
                found[table] = {**entries, place.removeprefix(table + "."): value}
    return found


def _places_in(source: Mapping[str, Any]) -> dict[str, Any]:
    """The values of one source by place; a field under two names is refused, since one of them would be ignored."""
    found: dict[str, Any] = {}
    names: dict[str, str] = {}
    for key, value in source.items():
        name = str(key)
        if name in SECTIONS and isinstance(value, Mapping):
            inner = {f"{name}.{field}": one for field, one in value.items()}
        else:
            inner = {name: value}
        for given, one in inner.items():
            place = place_of(given)
            if place in found:
                raise ConfigError(f"{names[place]} and {given} are the same field: give it once, as {place}")
            found[place], names[place] = one, given
    return found


def nested(places: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted place as one table per section, the way that files have them."""
    found: dict[str, Any] = {}
    for place, value in places.items():
        section, dot, name = place.partition(".")
        if dot:
            found.setdefault(section, {})[name] = value
        else:
            found[place] = value
    return found


_SECTIONS = {
    "data": DataRecipe,
    "optimizer": OptimizerRecipe,
    "schedule": ScheduleRecipe,
    "compression": CompressionRecipe,
    "distillation": DistillationRecipe,
}


def _kinds() -> dict[str, Any]:
    """The type of every field, by its dotted place."""
    found = {each.name: each.type for each in dataclasses.fields(Recipe) if each.name not in SECTIONS}
    for section, kind in _SECTIONS.items():
        found |= {f"{section}.{each.name}": each.type for each in dataclasses.fields(kind)}
    return found


KINDS = _kinds()


def recipe_from(values: Mapping[str, Any], source: str = "the configuration") -> Recipe:
    """A recipe from plain values; unknown names and wrong types are refused by name.

    Example:
        >>> recipe_from({"network": "digits-cnn", "data": "digits", "optimizer.lr": 0.05}).optimizer.lr
        0.05
    """
    places = by_place(values)
    for section in SECTIONS:
        if section in places:  # the others have become `name` of their section
            raise ConfigError(f"{source}: {section} should be a table of fields, not {places[section]!r}")
    unknown = sorted(set(places) - set(KINDS))
    if unknown:
        likely = [field for name in unknown for field in _likely(name)]
        meant = f"did you mean one of: {', '.join(likely)}?" if likely else f"known are {', '.join(sorted(KINDS))}"
        raise ConfigError(f"{source} has unknown fields: {', '.join(unknown)}; {meant}")
    typed = nested({place: _typed(place, value, source) for place, value in places.items()})
    return Recipe(**typed | {name: kind(**typed.get(name, {})) for name, kind in _SECTIONS.items()})


_ALIKE = 0.75  # of 1: typing errors are, other words are not


def _likely(name: str) -> list[str]:
    """The fields that an unknown name may stand for, at their places or without."""
    places = {place.rpartition(".")[2]: place for place in KINDS} | {place: place for place in KINDS}
    close = next(
        filter(None, (get_close_matches(one, places, cutoff=_ALIKE) for one in (name.rpartition(".")[2], name))), []
    )
    return list(dict.fromkeys(places[one] for one in close))


def changed(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """The recipe with these values, by flat or dotted names.

    Example:
        >>> changed(Recipe(), {"optimizer.lr": 0.05, "epochs": 10}).optimizer.lr
        0.05
    """
    return recipe_from(by_place(recipe.as_dict(), values))


def stored_recipe(values: Any, source: str) -> Recipe:
    """The recipe that a run has kept, from plain values; without its network and data it is that of no run."""
    if not isinstance(values, Mapping) or not {"network", "data.name"} <= by_place(values).keys():
        raise ArtefactError(
            f"{source} is damaged: it does not name the network and the data of a run; put it back, or choose another folder"
        )
    return recipe_from(values, source)


def require_same_recipe(recipe: Recipe, stored: Mapping[str, Any], where: Path) -> None:
    """Refuse to continue a run under another recipe, by the names of what differs."""
    require_same(by_place(recipe.as_dict()), by_place(stored), where)


def require_same(values: Mapping[str, Any], stored: Mapping[str, Any], where: Path) -> None:
    """Refuse to continue what was begun with other values, by their names; a value that is missing counts as None."""
    differs = [name for name in sorted({*values, *stored}) if values.get(name) != stored.get(name)]
    if differs:
        pairs = ", ".join(f"{name} (there {stored.get(name)!r}, now {values.get(name)!r})" for name in differs)
        raise ConfigError(f"{where} was run with another configuration: {pairs}. Use the same one or another --out")


def read_config(path: Path) -> dict[str, Any]:
    """The values of a TOML or JSON file."""
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"Cannot read the configuration {path}: {error}") from error
    try:
        values = parse_json(text) if path.suffix == ".json" else parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not valid {'JSON' if path.suffix == '.json' else 'TOML'}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a table of fields, such as lr = 0.1")
    return values


def _typed(place: str, value: Any, source: str) -> Any:
    """The value of a field, if it has the field's type.

    Loose if nothing is lost (1 for 1.0, lists for tuples, '48KB' for bytes), strict otherwise.
    """
    if place == "compression.budget" and value is not None:
        return parse_bytes(value)
    kind = KINDS[place]
    wanted = str(kind if isinstance(kind, str) else getattr(kind, "__name__", kind))
    if value is None:
        fits = "None" in wanted
    elif "tuple" in wanted:
        fits = isinstance(value, list | tuple) and all(_is_number(each) for each in value)
    elif "Mapping" in wanted:
        fits = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    elif "float" in wanted:
        fits = _is_number(value)
    elif wanted.startswith("int"):
        fits = isinstance(value, int) and not isinstance(value, bool)
    else:
        fits = isinstance(value, bool if "bool" in wanted else str)
    if not fits:
        raise ConfigError(f"{source}: {place} should be of type {wanted}, not {value!r}")
    return float(value) if "float" in wanted and _is_number(value) else value


def _is_number(value: Any) -> bool:
    """Whether the value is a number that a float can hold; whole numbers have no limit of their own."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, float) or (whole and abs(value) <= sys.float_info.max)
