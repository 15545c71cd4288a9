"""Where each field of a recipe is, by its dotted name, and by the flat name that it had until 0.1.0.

Recipes were flat until 0.1.0: `lr` is `optimizer.lr` now, and the string `optimizer` is `optimizer.name`. Run folders, studies,
results and files of users still have the flat names, so every reader of plain values goes through `by_place` first.
"""

from collections.abc import Mapping
from typing import Any

from paretorch.errors import ConfigError

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
