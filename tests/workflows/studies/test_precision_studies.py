"""The precision studies on tiny settings: every method runs, at the bits that its name says."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paretorch.training import Recipe, Runtime, train
from paretorch.training.recipe import QUANTIZATION
from paretorch.training.recipe_values import changed
from paretorch.workflows.studies import load_study, study_names
from tests.decisions import relaxed
from tests.training.test_tasks_gan import _images

_RUNTIME = Runtime(device="cpu", progress="quiet")
_TINY: dict[str, Any] = {
    "network": "digits-cnn",
    "network_options": {"width": 4},
    "data": "digits",
    "batch": 256,
    "epochs": 1,
    "finetune": 1,
}
_NAMES = sorted(name for name in study_names() if name.startswith("precision-"))
_IMAGES = ["precision-resnet20", "precision-mobilenetv2", "precision-shufflenet", "precision-split"]


_AS_LONG = {
    "precision-resnet20": 350,
    "precision-printed": 650,
    "precision-mobilenetv2": 650,
    "precision-shufflenet": 650,
    "precision-activations": 650,
}


@pytest.mark.parametrize("name", _AS_LONG)
def test_everything_trains_as_long_as_dense(name: str) -> None:
    study = load_study(name)
    assert not study.settings["dense"].compresses
    for recipe in study.settings.values():
        assert recipe.epochs + recipe.finetune == _AS_LONG[name]
        assert not recipe.finetune or recipe.epochs <= 350 or recipe.compression.quantization == "slb"
        assert (recipe.optimizer.lr, recipe.optimizer.momentum, recipe.data.batch) == (0.1, 0.9, 128)


def test_every_method_is_in_the_study_of_resnet20() -> None:
    studies = [load_study(name) for name in ("precision-resnet20", "precision-printed")]
    found = {recipe.compression.quantization for study in studies for recipe in study.settings.values()}
    assert found == {None, *QUANTIZATION} - {"given"}


def _one_a_family(name: str) -> list[tuple[str, str]]:
    study = load_study(name)
    return [(name, setting) for setting in {study.family(each): each for each in study.settings}.values()]


@pytest.mark.parametrize("setting", ["smol-1.8", "channel-2.5", "pact-3"])
def test_activations_get_their_bits(tmp_path: Path, setting: str) -> None:
    recipe = load_study("precision-activations", _TINY).settings[setting]
    result = train(recipe, tmp_path, _RUNTIME)
    assert result["activation_bits"] == pytest.approx(float(setting.split("-")[1]), abs=0.05)
    assert "bits" not in result


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        *_one_a_family("precision-resnet20"),
        ("precision-printed", "printed-7e-07"),
        ("precision-mobilenetv2", "zero-1.7"),
        ("precision-shufflenet", "smol-1.8"),
        ("precision-split", "lambda-50"),
        ("precision-split", "target-350"),
    ],
)
def test_every_method_runs(tmp_path: Path, name: str, setting: str) -> None:
    recipe = load_study(name, _TINY).settings[setting]
    result = train(recipe, tmp_path, _RUNTIME)
    assert 0 <= result["test_accuracy"] <= 1
    if recipe.compression.bits is not None and recipe.compression.quantization not in ("bsq", "smol-printed"):
        slack = (
            0.15 if recipe.compression.precision_options.get("group") == "layer" else 0.05
        )  # half of the largest layer

        assert result["bits"] == pytest.approx(recipe.compression.bits, abs=slack)
    assert ("bits" in result) == recipe.compresses


def test_the_printed_study_has_the_printed_algorithm() -> None:
    from paretorch import SMOL

    for setting, recipe in load_study("precision-printed").settings.items():
        if recipe.compresses:
            options = {"rounding": "floor", **recipe.compression.precision_options}
            assert recipe.compression.quantization == "smol-printed"
            expected = SMOL.as_printed(
                options.pop("penalty"), rounding="floor", init_bits=recipe.compression.bits or 0.0
            )
            more = {name: options.pop(name) for name in ("zero_precision", "group") if name in options}
            assert {name: getattr(expected, name) for name in options} == options, setting
            assert more == {"zero": {"zero_precision": True}, "layer": {"group": "layer"}}.get(
                setting.split("-")[0], {}
            )


def test_the_split_covers_the_budget() -> None:
    study = load_study("precision-split")
    for recipe in study.settings.values():
        assert recipe.epochs + recipe.finetune == 650
        assert recipe.schedule.finetune_lr == (0.1 if recipe.epochs < 250 else 0.01)
    printed = [recipe for setting, recipe in study.settings.items() if setting.startswith("lambda")]
    assert [recipe.epochs for recipe in printed] == list(range(50, 601, 50))
    assert {recipe.compression.precision_options["penalty"] for recipe in printed} == {7e-7}


def test_shuffled_precisions_from_one_study_to_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = load_study("precision-resnet20", _TINY).settings["smol-2.5"]
    train(recipe, Path("runs/precision-resnet20/smol-2.5-seed0"), _RUNTIME)
    study = load_study("precision-shuffle", {**_TINY, "finetune": 0})
    assert recipe.seed not in study.seeds, "new weights"
    for setting, each in study.settings.items():
        result = train(replace(each, seed=study.seeds[0]), Path(setting), _RUNTIME)
        assert result["bits"] == pytest.approx(2.5, abs=0.05)


@pytest.mark.parametrize("setting", ["dense", "zero-1", "zero-0.2", "lsq", "bsq"])
def test_generators(tmp_path: Path, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_study("precision-dcgan").settings[setting]
    small = {"network_options": {"latent": 4, "width": 2}, "batch": 8, "epochs": 1}
    options = {**(recipe.data.options or {}), "critic_width": 2, "samples": 12}
    assert Path(options.pop("features")).exists(), "a classifier that comes with the project"
    recipe = changed(recipe, {**small, "finetune": min(recipe.finetune, 1), "data.options": options})
    monkeypatch.setattr("paretorch.zoo.data.load", lambda *_: _images())
    if recipe.start is not None:  # it begins with the network of another setting
        before = changed(load_study("precision-dcgan").settings["dense-short"], {**small, "data.options": options})
        assert recipe.start == "runs/precision-dcgan/dense-short-seed0/model.pare"
        train(before, tmp_path / "before", _RUNTIME)
        recipe = changed(recipe, {"start": str(tmp_path / "before" / "model.pare")})
    result = train(recipe, tmp_path / "run", _RUNTIME)
    assert "test_frechet" in result
    if setting in ("zero-1", "lsq"):
        assert result["bits"] == pytest.approx(recipe.compression.bits, abs=0.15)  # of few weights, each a large share


def test_the_transformer_is_quantized_but_for_its_norms() -> None:
    from paretorch import zoo
    from paretorch.training.compression import attach
    from paretorch.training.tasks.translation import Translation
    from tests.training.test_tasks_translation import _pairs

    study = load_study("precision-transformer")
    assert {recipe.epochs + recipe.finetune for recipe in study.settings.values()} == {50}
    network = zoo.build("transformer", vocabulary=9, units=8, inner=8, heads=2, layers=1, dropout=0.0)
    wide = sum(p.numel() for p in network.parameters() if p.dim() > 1)
    task = Translation(_pairs(), tokens=20, seed=1)
    plan = attach(network, study.settings["smol-3.9"], steps=4, example=task.example())
    assert plan is not None
    assert sum(own.latent.numel() for own in relaxed(network).values()) == wide
    plan.harden()
    assert plan.metrics()["bits"] == pytest.approx(3.9, abs=0.05)


@pytest.mark.parametrize("name", _IMAGES)
def test_the_networks_themselves_take_the_methods(name: str) -> None:
    """Not tiny networks in their place: the plan of one setting on the real one, made and rounded."""
    import torch

    from paretorch import zoo
    from paretorch.training.compression import attach

    study = load_study(name)
    recipe: Recipe = next(
        r for r in study.settings.values() if r.compression.bits is not None and r.compression.quantization == "smol"
    )
    network = zoo.build(recipe.network)
    plan = attach(network, recipe, steps=4, example=torch.zeros(1, 3, 32, 32))
    assert plan is not None
    assert recipe.compression.bits is not None
    plan.harden()
    assert plan.metrics()["bits"] == pytest.approx(recipe.compression.bits, abs=0.01)


def test_the_page_names_every_study_and_every_method() -> None:
    page = (Path(__file__).parents[3] / "docs" / "precision.md").read_text()
    named = set(re.findall(r"precision-[a-z0-9-]*[a-z0-9]", page))
    assert set(_NAMES) <= named
    assert all(f"| `{name}` |" in page for name in QUANTIZATION)
