"""Every flat name of 0.1.0 is still read, beside nested and dotted names, wherever a recipe may be stored."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from paretorch.errors import ConfigError
from paretorch.training.recipe import Recipe
from paretorch.training.recipe_values import (
    KINDS,
    PLACES,
    by_place,
    changed,
    nested,
    read_config,
    recipe_from,
    stored_recipe,
)

# A value that is not the default, for every field of the flat recipe of 0.1.0. `start` and the like make `epochs=0` legal.
_FLAT: dict[str, Any] = {
    "network": "vgg16",
    "network_options": {"width": 4},
    "start": "model.pare",
    "data": "digits",
    "validation": 200,
    "data_options": {"bptt": 5},
    "epochs": 7,
    "finetune": 3,
    "batch": 64,
    "optimizer": "adam",
    "lr": 0.01,
    "momentum": 0.8,
    "nesterov": False,
    "betas": [0.8, 0.99],
    "eps": 1e-4,
    "weight_decay": 1e-4,
    "clip_norm": 0.25,
    "schedule": "steps",
    "milestones": [1.0, 2.0],
    "factor": 0.2,
    "warmup": 1.0,
    "finetune_lr": 0.003,
    "finetune_schedule": "linear",
    "finetune_milestones": [1.0],
    "pad": 2,
    "flip": True,
    "cutout": 8,
    "label_smoothing": 0.1,
    "sparsity": 0.9,
    "pruning": "gmp",
    "sparsity_options": {"group": "channel"},
    "bits": 2.0,
    "quantization": "lsq",
    "precision_options": {"ends": 8},
    "budget": 48000,
    "activation_bits": 4.0,
    "activations": "pact",
    "activation_options": {"group": "channel"},
    "sharing_options": {"templates": 2},
    "norms": "bf16",
    "dtype": "fp32",
    "seed": 5,
}


def test_every_flat_name_has_a_place_and_every_field_a_flat_name() -> None:
    assert len(_FLAT) == 42
    assert set(PLACES) == set(_FLAT)
    later = {"distillation.teacher", "distillation.alpha", "distillation.temperature", "task"}  # newer than flat names
    assert set(PLACES.values()) | later == set(KINDS)
    assert not set(PLACES.values()) & later
    assert len(set(PLACES.values())) == len(PLACES)


def test_all_flat_names_together_give_the_nested_recipe() -> None:
    recipe = recipe_from(_FLAT)
    stored = recipe.as_dict()
    assert by_place(stored) == {PLACES[name]: value for name, value in _FLAT.items()}
    assert recipe_from(stored) == recipe
    assert stored_recipe(_FLAT, "config.json") == recipe


@pytest.mark.parametrize("name", _FLAT)
def test_a_flat_name_sets_its_field_and_no_other(name: str) -> None:
    """Over a recipe that has all else, so that what needs something else has it."""
    place = PLACES[name]
    others = {other: value for other, value in _FLAT.items() if other != name}
    if name == "milestones":
        others["schedule"] = "cosine"
    without = recipe_from(others)
    section, _, field = place.rpartition(".")
    owner = getattr(without, section) if section else without
    default = next(one for one in dataclasses.fields(owner) if one.name == field)
    expected = default.default_factory() if default.default is dataclasses.MISSING else default.default  # type: ignore[misc]
    assert getattr(owner, field) == expected
    flat, dotted = (changed(without, {key: _FLAT[name]}) for key in (name, place))
    table = changed(without, nested({place: _FLAT[name]}))
    assert flat == dotted == table != without
    differs = {key for key, value in by_place(flat.as_dict()).items() if value != by_place(without.as_dict())[key]}
    assert differs == {place}


def test_files_may_be_flat_nested_or_dotted(tmp_path: Path) -> None:
    texts = {
        "flat": 'data = "digits"\nlr = 0.05\nsparsity = 0.5\nsparsity_options = { init = 0.1 }',
        "nested": '[data]\nname = "digits"\n[optimizer]\nlr = 0.05\n[compression]\nsparsity = 0.5\nsparsity_options.init = 0.1',
        "dotted": 'data.name = "digits"\noptimizer.lr = 0.05\ncompression.sparsity = 0.5\ncompression.sparsity_options.init = 0.1',
        "quoted": '"data.name" = "digits"\n"lr" = 0.05\n"sparsity" = 0.5\n"sparsity_options.init" = 0.1',
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.toml").write_text(text)
    recipes = [recipe_from(read_config(tmp_path / f"{name}.toml")) for name in texts]
    assert all(recipe == recipes[0] for recipe in recipes)
    assert (recipes[0].data.name, recipes[0].compression.sparsity_options) == ("digits", {"init": 0.1})


def test_a_later_source_replaces_a_table_or_sets_one_entry_of_it() -> None:
    first = {"sparsity": 0.5, "sparsity_options": {"init": 0.1, "group": "channel"}}
    assert by_place(first, {"sparsity_options.init": 0.2})["compression.sparsity_options"] == {
        "init": 0.2,
        "group": "channel",
    }
    assert by_place(first, {"sparsity_options": {"init": 0.2}})["compression.sparsity_options"] == {"init": 0.2}
    assert by_place({"data_options": None}, {"data.options.bptt": 5})["data.options"] == {"bptt": 5}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr": 0.1, "optimizer": {"lr": 0.2}}, "lr and optimizer.lr are the same field"),
        ({"data": {"name": "digits"}, "data.name": "cifar10"}, "data.name and data.name are the same field"),
        ({"optimizer": {"rate": 0.1}}, "unknown fields: optimizer.rate"),
        ({"optimizer.rate": 0.1}, "unknown fields: optimizer.rate"),
        (
            {"optimizer": {"sparsity": 0.1}},
            "unknown fields: optimizer.sparsity; did you mean one of: compression.sparsity",
        ),
        ({"sparsty": 0.1}, "sparsty; did you mean one of: compression.sparsity"),
        ({"zzz": 1}, "zzz; known are compression.activation_bits, "),
        ({"network.width": 4}, "unknown fields: network.width"),
        ({"compression": 0.5}, "compression should be a table of fields, not 0.5"),
        ({"data": 3}, "data.name should be of type str"),
        ({"optimizer": {"lr": {"value": 0.1}}}, "optimizer.lr should be of type float"),
        ({"sparsity_options": 3, "sparsity": 0.5}, "sparsity_options should be of type"),
    ],
)
def test_names_that_are_wrong_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recipe_from(values)


def test_stored_results_of_the_flat_recipe_are_read() -> None:
    """Those under results/ were written by 0.1.0."""
    found = [json.loads(path.read_text()) for path in Path("results").glob("*/*seed*.json")]
    recipes = [one["recipe"] for one in found if "recipe" in one]
    flat = [one for one in recipes if isinstance(one["data"], str)]
    assert flat
    for one in flat:
        recipe = stored_recipe(one, "results")
        assert (recipe.data.name, recipe.optimizer.lr, recipe.seed) == (one["data"], one["lr"], one["seed"])


def test_a_plain_recipe_has_the_defaults() -> None:
    assert recipe_from({}) == Recipe()
