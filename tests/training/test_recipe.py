"""Recipes from files, and what they refuse."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paretorch.errors import ConfigError
from paretorch.support.text import parse_bytes
from paretorch.training.recipe_values import read_config, recipe_from


def test_toml_and_json_give_the_same_recipe(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        'network = "vgg16"\nlr = 1\nmilestones = [80, 120]\nschedule = "steps"\nbudget = "48KB"\n'
    )
    (tmp_path / "a.json").write_text(
        json.dumps({"network": "vgg16", "lr": 1, "milestones": [80, 120], "schedule": "steps", "budget": 48000})
    )
    toml, other = (recipe_from(read_config(tmp_path / name)) for name in ("a.toml", "a.json"))
    assert (
        toml
        == other
        == recipe_from(
            {
                "network": "vgg16",
                "optimizer.lr": 1.0,
                "schedule.milestones": (80, 120),
                "schedule.name": "steps",
                "compression.budget": 48000,
            }
        )
    )


def test_the_recipe_of_the_guide_is_one(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
    (tmp_path / "recipe.toml").write_text(guide.partition("```toml\n")[2].partition("```")[0])
    recipe = recipe_from(read_config(tmp_path / "recipe.toml"))
    assert (recipe.data.name, recipe.schedule.milestones) == ("cifar10", (80, 120))
    assert recipe.compression.sparsity_options == {"group": "channel"}


@settings(max_examples=30, deadline=None)
@given(
    lr=st.floats(0, 10),
    seed=st.integers(0, 2**31),
    sparsity=st.none() | st.floats(0, 0.99),
    options=st.dictionaries(st.sampled_from(["a", "b"]), st.integers() | st.text(max_size=3)),
)
def test_a_recipe_survives_json(lr: float, seed: int, sparsity: float | None, options: dict[str, Any]) -> None:
    recipe = recipe_from(
        {"optimizer.lr": lr, "seed": seed, "compression.sparsity": sparsity, "network_options": options}
    )
    assert recipe_from(json.loads(json.dumps(recipe.as_dict()))) == recipe


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rate": 0.1}, "unknown fields: learning_rate"),
        ({"lr": "fast"}, "lr should be of type float"),
        ({"epochs": 1.5}, "epochs should be of type int"),
        ({"epochs": True}, "epochs should be of type int"),
        ({"nesterov": 1}, "nesterov should be of type bool"),
        ({"network": 20}, "network should be of type str"),
        ({"network": None}, "network should be of type str"),
        ({"milestones": "80"}, "milestones should be of type"),
        ({"network_options": [1]}, "network_options should be of type"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"lr": float("nan")}, "lr must be at least 0"),
        ({"betas": [0.9]}, r"betas must be two numbers .* not \[0.9\]"),
        ({"betas": [0.9, 0.99, 0.999]}, "betas must be two numbers"),
        ({"betas": [0.9, 1.0]}, "betas must be two numbers from 0 to just below 1"),
        ({"eps": -1e-8}, "eps must be at least 0"),
        ({"finetune_lr": -0.1}, "finetune_lr must be at least 0"),
        ({"factor": -0.1}, "factor must be at least 0"),
        ({"momentum": 1.0}, "momentum must be a number from 0 to just below 1"),
        ({"label_smoothing": -0.1}, "label_smoothing must be a number from 0 to 1"),
        ({"label_smoothing": float("nan")}, "label_smoothing must be a number from 0 to 1"),
        ({"seed": 2**64}, "seed must be below"),
        ({"lr": 1e308}, r"lr must be at most 1e\+38"),
        ({"lr": 10**400}, "lr should be of type float"),
        ({"milestones": [float("nan")]}, "a milestone must be at least 0"),
        ({"milestones": [10**400]}, "milestones should be of type"),
        ({"batch": 10**400}, r"batch must be at most 1e\+38"),
        ({"epochs": 10**18}, "epochs and finetune must be at most 1,000,000,000"),
        ({"sparsity": 0.5, "finetune": 10**18}, "epochs and finetune must be at most 1,000,000,000"),
        ({"budget": "9" * 5000}, "is no size"),
        ({"optimizer": "sdg"}, "choose one of sgd"),
        ({"schedule": "steps"}, "needs milestones"),
        ({"finetune_schedule": "steps"}, "needs finetune_milestones"),
        ({"finetune_schedule": "through", "finetune_lr": 0.01}, "leave finetune_lr out"),
        ({"finetune": 3}, "set sparsity, bits, activation_bits or budget"),
        ({"budget": "48 potatoes"}, "is not a size"),
        ({"dtype": "fp8"}, "choose one of auto"),
    ],
)
def test_wrong_values_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recipe_from(values)


@pytest.mark.parametrize(("name", "text"), [("a.toml", "lr ="), ("a.json", "{"), ("b.json", "[1]")])
def test_a_broken_file_is_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=name):
        read_config(tmp_path / name)
    with pytest.raises(ConfigError, match=r"missing.toml"):
        read_config(tmp_path / "missing.toml")


@pytest.mark.parametrize(
    ("text", "size"), [("48KB", 48000), ("48 KiB", 49152), ("1.5MB", 1_500_000), ("7", 7), (12, 12), ("3b", 3)]
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size
