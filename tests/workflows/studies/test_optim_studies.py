"""The optimizer studies on tiny settings: every optimizer that they name takes its steps, at the rates that they name."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from paretorch.training import Recipe, Runtime, train
from paretorch.training.recipe import OPTIMIZERS
from paretorch.training.recipe_values import changed
from paretorch.workflows.studies import load_study, study_names
from tests.training.test_tasks_gan import _images
from tests.training.test_tasks_promises import RECIPES, root  # noqa: F401 - a fixture

NAMES = sorted(name for name in study_names() if name.startswith("optim-"))
STUDIES = {name: load_study(name) for name in NAMES}
CASES = [(name, setting) for name, study in STUDIES.items() for setting in study.settings]


def _kind(name: str, setting: str) -> tuple[str, str]:
    recipe = STUDIES[name].settings[setting]
    return recipe.data.name, recipe.optimizer.name


# The last of each optimizer on each data set has its largest rate; `make contract` trains the others.
_LAST = {_kind(*case): case for case in CASES}
_TRAINED = [
    pytest.param(
        name,
        setting,
        marks=[] if _LAST[_kind(name, setting)] == (name, setting) else pytest.mark.contract,
    )
    for name, setting in CASES
]
_DIGITS: dict[str, Any] = {"network": "digits-cnn", "network_options": {"width": 4}, "data": "digits", "batch": 256}
_GAN: dict[str, Any] = {"network_options": {"latent": 4, "width": 2}, "batch": 8}


def small(recipe: Recipe) -> Recipe:
    """The same optimizer at the same rates, for one epoch of something tiny of the same kind."""
    changes = {"epochs": 1, "milestones": tuple(0.5 for _ in recipe.schedule.milestones), "warmup": 0.0}
    if recipe.network == "dcgan-generator":
        options = {**(recipe.data.options or {}), "critic_width": 2, "samples": 12}
        assert Path(options.pop("features")).exists(), "a classifier that comes with the project"
        return changed(recipe, {**changes, **_GAN, "data.options": options})
    tiny = (
        RECIPES["ptb-char"]
        if recipe.data.name == "ptb-char"
        else {**_DIGITS, "validation": min(recipe.data.validation, 200)}
    )
    return changed(recipe, {**changes, **tiny})


@pytest.mark.parametrize(("name", "setting"), _TRAINED)
def test_every_setting_trains(
    name: str,
    setting: str,
    tmp_path: Path,
    root: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = small(STUDIES[name].settings[setting])
    if recipe.optimizer.name.startswith("ada") and recipe.optimizer.name not in ("adam", "adamw"):
        pytest.importorskip("pytorch_optimizer")
    if recipe.network == "dcgan-generator":
        monkeypatch.setattr("paretorch.zoo.data.load", lambda *_: _images())
    result = train(recipe, tmp_path, Runtime(device="cpu", progress="quiet", root=str(root)))
    metric = next(value for key, value in result.items() if key.startswith("test_") and key != "test_loss")
    assert math.isfinite(metric)


def test_the_rivals_of_the_thesis_are_there() -> None:
    found = {STUDIES[name].settings[setting].optimizer.name for name, setting in CASES}
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


def test_rates_that_are_known_to_fail_are_gone() -> None:
    """AvaGrad diverges, or learns nothing, at the rates above those that optim-lstm300-rates chose."""
    chosen = load_study("optim-lstm300").settings["avagrad"].optimizer
    for name in ("optim-lstm300", "optim-lstm1000"):
        for setting, recipe in load_study(name).settings.items():
            if setting.startswith("avagrad"):
                assert (recipe.optimizer.lr, recipe.optimizer.eps) == (chosen.lr, chosen.eps)
    adamw, avagradw = (load_study("optim-lstm300").settings[name].optimizer for name in ("adamw", "avagradw"))
    assert adamw.lr * adamw.weight_decay == pytest.approx(avagradw.lr * avagradw.weight_decay)


def test_the_rates_of_the_small_lstm_are_those_of_the_large_one() -> None:
    small = {**load_study("optim-lstm300").settings, **load_study("optim-lstm300-peers").settings}
    large = load_study("optim-lstm1000").settings
    assert set(large) == set(small)
    for setting, recipe in large.items():
        assert recipe.optimizer == small[setting].optimizer


def test_every_optimizer_is_given_as_many_settings() -> None:
    settings = load_study("optim-wrn28-4-rates").settings.values()
    counts = {name: sum(one.optimizer.name == name for one in settings) for name in OPTIMIZERS}
    assert counts.pop("delayed-adam") == 0
    assert set(counts.values()) == {6}


def test_a_generator_is_judged_by_the_features_of_a_classifier() -> None:
    from paretorch.training.tasks.gan import Features

    images = _images()
    (path,) = {
        (one.data.options or {})["features"]
        for name in ("optim-ggan", "optim-ggan-rates", "precision-dcgan")
        for one in load_study(name).settings.values()
    }
    assert Features(path, images, torch.device("cpu"))(torch.zeros(2, 3, 32, 32)).shape == (2, 64)
