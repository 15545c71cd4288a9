"""The optimizer studies on tiny settings: every optimizer that they name takes its steps, at the rates that they name."""

import math
from pathlib import Path
from typing import Any

import pytest

from paretorch.training import Recipe, Runtime, train
from paretorch.training.recipe import OPTIMIZERS
from paretorch.training.recipe_values import changed
from paretorch.workflows.studies import load_study, study_names
from tests.training.test_tasks_gan import _images
from tests.training.test_tasks_promises import RECIPES, root  # noqa: F401 - a fixture

NAMES = sorted(name for name in study_names() if name.startswith("optim-"))
CASES = [(name, setting) for name in NAMES for setting in load_study(name).settings]
_DIGITS: dict[str, Any] = {"network": "digits-cnn", "network_options": {"width": 4}, "data": "digits", "batch": 256}
_GAN: dict[str, Any] = {"network_options": {"latent": 4, "width": 2}, "batch": 8}


def small(recipe: Recipe) -> Recipe:
    """The same optimizer at the same rates, for one epoch of something tiny of the same kind."""
    changes = {"epochs": 1, "milestones": tuple(0.5 for _ in recipe.schedule.milestones), "warmup": 0.0}
    if recipe.network == "dcgan-generator":
        options = {**(recipe.data.options or {}), "critic_width": 2, "samples": 12}
        return changed(recipe, {**changes, **_GAN, "data.options": options})
    return changed(recipe, {**changes, **(RECIPES["ptb-char"] if recipe.data.name == "ptb-char" else _DIGITS)})


@pytest.mark.parametrize(("name", "setting"), CASES)
def test_every_setting_trains(
    name: str,
    setting: str,
    tmp_path: Path,
    root: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = small(load_study(name).settings[setting])
    if recipe.optimizer.name.startswith("ada") and recipe.optimizer.name not in ("adam", "adamw"):
        pytest.importorskip("pytorch_optimizer")
    if recipe.network == "dcgan-generator":
        monkeypatch.setattr("paretorch.zoo.data.load", lambda *_: _images())
    result = train(recipe, tmp_path, Runtime(device="cpu", progress="quiet", root=str(root)))
    metric = next(value for key, value in result.items() if key.startswith("test_") and key != "test_loss")
    assert math.isfinite(metric)


def test_the_rivals_of_the_thesis_are_there() -> None:
    found = {load_study(name).settings[setting].optimizer.name for name, setting in CASES}
    assert found >= set(OPTIMIZERS) - {"delayed-adam"}


def test_the_same_rates_on_the_wide_network_as_on_the_narrow_one() -> None:
    """Tuned on WRN-28-4, used on WRN-28-10."""
    narrow = load_study("optim-wrn28-4-cifar10").settings
    for name in ("optim-wrn28-10-cifar10", "optim-wrn28-10-cifar100"):
        for setting, recipe in load_study(name).settings.items():
            assert (recipe.optimizer.lr, recipe.optimizer.eps) == (
                narrow[setting].optimizer.lr,
                narrow[setting].optimizer.eps,
            )
