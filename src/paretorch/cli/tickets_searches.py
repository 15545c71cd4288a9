"""What `pare tickets` is asked for: the recipe, the searches, and the folder that they go into."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from paretorch.cli.recipe_flags import require_drops, source_of, with_held_out
from paretorch.errors import ConfigError
from paretorch.training.recipe_keys import by_place
from paretorch.training.recipe_values import read_config, recipe_from
from paretorch.training.runtime import Runtime
from paretorch.workflows.tickets import METHODS, Bench, Search, Storage, make_method

_FIELDS = ("init", "method", "options", "rate", "rewind", "rounds", "seeds", "store")


def open_storage(
    config: Path | None,
    folder: Path | None,
    continues: bool,
    recipe_given: dict[str, Any],
    search_given: dict[str, Any],
    runtime: Runtime,
) -> Storage:
    """The folder with all that is asked for in it; whatever is wrong is said before the folder is made."""
    values = {} if config is None else read_config(config)
    table = values.pop("tickets", {})
    if not isinstance(table, dict):
        raise ConfigError(f"{config}: tickets should be a table, such as [tickets] and below it rounds = 5.")
    if continues and folder is not None and config is None:
        if not recipe_given and not search_given:
            return Storage.open(folder)
        if (folder / "recipe.json").exists():
            values = Storage.open(folder).recipe.as_dict()
    source = source_of(config)
    recipe = recipe_from(with_held_out(by_place(values, recipe_given)), source)
    require_drops(recipe, recipe_given)
    folder = folder or Path("runs") / f"tickets-{recipe.network}-{recipe.data.name}"
    exists = (folder / "recipe.json").exists()
    if exists and not continues:
        raise ConfigError(
            f"{folder} already holds a ticket search; continue it with --resume, join it with --storage, or choose another --out."
        )
    wanted = {**table, **search_given}
    searches = [] if exists and not wanted else make_searches({"seeds": [recipe.seed], **wanted}, source)
    Bench.of(recipe, runtime)  # for the errors alone
    return Storage.join(folder, recipe, searches)


def make_searches(wanted: dict[str, Any], source: str) -> list[Search]:
    """Every method with every setting and seed."""
    if unknown := ", ".join(sorted(set(wanted) - set(_FIELDS))):
        known = ", ".join(_FIELDS)
        raise ConfigError(f"{source} has unknown fields of a ticket search: {unknown}; known are {known}.")
    options = wanted.get("options", {})
    if not isinstance(options, dict):
        raise ConfigError(f"{source}: options of a ticket search should be a table, such as penalty = 1e-8.")
    names = [str(each) for each in _listed(wanted.get("method", "cs"))]
    varied: dict[str, list[Any]] = {name: _listed(wanted[name]) for name in ("init", "rate") if name in wanted}
    _check(names, options, varied)
    rest = {name: wanted[name] for name in ("store", "rewind") if name in wanted}
    searches = []
    for name in names:
        rounds = wanted.get("rounds")
        rounds = rounds if rounds is not None else 1 if METHODS[name].frozen else 5
        searches += [
            Search(make_method(name, setting), rounds, seed=seed, **rest)
            for setting in _settings(name, options, varied)
            for seed in _listed(wanted["seeds"])
        ]
    if len({search.name for search in searches}) < len(searches):
        raise ConfigError("Two of the runs would have one name: give each method, init, rate and seed once.")
    return searches


def _check(names: list[str], options: dict[str, Any], varied: dict[str, list[Any]]) -> None:
    """Refuse a method that there is not, and what none of the methods could use."""
    known = set[str]().union(*(_options_of(name) for name in names))
    told = " and ".join(names)
    for each in options:
        if each not in known:
            raise ConfigError(f"{told}: there is no option {each!r}; there are: {', '.join(sorted(known))}.")
    for each in varied:
        if not any(METHODS[name].varies == each for name in names):
            by_init, by_rate = (
                ", ".join(name for name, one in METHODS.items() if one.varies == option) for option in ("init", "rate")
            )
            raise ConfigError(
                f"--{each}: runs of {told} do not differ by {each}; those of {by_init} differ by init, of {by_rate} by rate."
            )


def _settings(name: str, options: dict[str, Any], varied: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """The options of each run of a method: those that it has, with every value of what its runs differ by."""
    setting = {key: value for key, value in options.items() if key in _options_of(name)}
    own = METHODS[name].varies
    return [{**setting, own: value} for value in varied[own]] if own in varied else [setting]


def _options_of(name: str) -> set[str]:
    return {one.name for one in fields(make_method(name, {}))}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
