"""The study of bytes on disk on a tiny setting: every family runs, files keep to their budgets, and the bench draws them."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from paretorch import zoo
from paretorch.cli.app import app
from paretorch.report import report
from paretorch.training import Recipe, Runtime, train
from paretorch.training.compression import attach
from paretorch.training.recipe_values import changed
from paretorch.workflows.studies import load_study

_TINY: dict[str, Any] = {
    "network": "digits-cnn",
    "network_options": {"width": 4},
    "data": "digits",
    "batch": 64,
    "lr": 0.05,
    "epochs": 2,
    "finetune": 1,
}
_BUDGET = 1100


def _tiny(setting: str) -> Recipe:
    recipe = load_study("deploy-resnet20", _TINY).settings[setting]
    return recipe if recipe.compression.budget is None else changed(recipe, {"compression.budget": _BUDGET})


def test_the_curve_has_its_points_and_everything_trains_as_long() -> None:
    study = load_study("deploy-resnet20")
    budgets = [recipe.compression.budget for setting, recipe in study.settings.items() if setting.startswith("both-")]
    assert budgets == [16_000, 24_000, 32_000, 48_000, 96_000, 200_000]
    assert {recipe.epochs + recipe.finetune for recipe in study.settings.values()} == {350}
    assert {recipe.data.validation for recipe in study.settings.values()} == {0}
    assert not study.settings["dense"].compresses
    for recipe in study.settings.values():
        assert (recipe.compression.norms == "bf16") == (recipe.compression.budget is not None)


@pytest.mark.parametrize(
    "setting",
    [
        "both-48KB",
        "alone",
        "bits-alone",
        *(pytest.param(one, marks=pytest.mark.contract) for one in ("weights-85", "bits-96KB")),
    ],
)
def test_every_way_to_spend_the_bytes_keeps_to_them(tmp_path: Path, setting: str) -> None:
    result = train(_tiny(setting), tmp_path, Runtime(device="cpu", progress="quiet"))
    assert 0.85 * _BUDGET <= result["bytes"] == (tmp_path / "model.pare").stat().st_size <= _BUDGET
    found = report(tmp_path / "model.pare")
    assert found.accuracy == pytest.approx(result["test_accuracy"], abs=1e-4)
    assert all(layer.size.bits < 32 for layer in found.layers), "no layer is left as it was"


def test_nothing_of_resnet20_is_left_out() -> None:
    model = zoo.build("resnet20", width=4)
    recipe = changed(load_study("deploy-resnet20").settings["both-48KB"], {"compression.budget": 6000})
    plan = attach(model, recipe, steps=1, example=torch.zeros(2, 3, 32, 32))
    assert plan is not None
    assert [method.exclude for method in plan.methods()] == [("head",), ()]
    plan.harden()
    small = plan.finalize()
    layers = report(small).layers
    assert {"stages.1.0.shortcut.0.weight", "stem.weight", "head.weight"} <= {layer.name for layer in layers}
    assert all(layer.size.precisions for layer in layers), "every weight lies on a grid"


def test_from_the_study_to_the_picture(tmp_path: Path) -> None:
    runs = tmp_path / "runs" / "deploy-resnet20"
    for setting in ("dense", "both-48KB", "mp-0.9", "lsq-2"):
        train(_tiny(setting), runs / f"{setting}-seed0", Runtime(device="cpu", progress="quiet"))
    done = CliRunner().invoke(app, ["bench", str(runs), "--out", str(tmp_path / "out"), "--json", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    families = {row["family"]: row["bytes"] for row in json.loads(done.stdout)["points"]}
    assert set(families) == {
        "dense fp32",
        "dense fp16",
        "int8 weights",
        "onnxruntime int8",
        "paretorch, CS + SMOL",
        "mp pruned, fp16 + zstd",
        "lsq in our file",
    }
    assert families["paretorch, CS + SMOL"] <= _BUDGET
    assert "on digits" in (tmp_path / "out" / "bench.svg").read_text()


def test_one_command_does_it(tmp_path: Path) -> None:
    words = ["train", "--network", "digits-cnn", "--data", "digits", "--epochs", "2", "--finetune", "1", "--lr", "0.05"]
    words += ["--budget", "1.6KB", "--set", "norms=bf16", "--set", 'network_options={"width": 4}']
    words += ["--set", 'sparsity_options={"exclude": ["head"]}', "--device", "cpu"]
    words += ["--set", 'precision_options={"exclude": [], "group": "channel"}']
    words += ["--sparsity", "0.785", "--bits", "0.86", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run" / "model.pare").stat().st_size <= 1600
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["recipe"]
    mine = load_study("deploy-resnet20").settings["both-48KB"]
    for name in ("norms", "sparsity", "bits", "sparsity_options", "precision_options"):
        assert stored["compression"][name] == mine.as_dict()["compression"][name]


def test_the_command_of_the_page_is_the_run_of_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "bench.md").read_text()
    blocks = re.findall(r"```sh\n(pare train .*?)```", page, re.DOTALL)
    assert len(blocks) == 1
    asked: list[Recipe] = []

    def pretended(recipe: Recipe, *_: object, **__: object) -> dict[str, Any]:
        asked.append(recipe)
        return {"bytes": 1, "dense_bytes": 1}

    monkeypatch.setattr("paretorch.training.run.train", pretended)
    done = CliRunner().invoke(app, shlex.split(blocks[0].replace("\\\n", " "))[1:])
    assert done.exit_code == 0, done.output
    assert asked[0].as_dict() == load_study("deploy-resnet20").settings["both-48KB"].as_dict()


def test_the_page_names_settings_that_are_there() -> None:
    page = (Path(__file__).parents[3] / "docs" / "bench.md").read_text()
    study = load_study("deploy-resnet20")
    for words in re.findall(r"--only '?([\w,*-]+)'?", page):
        assert study.only(words.split(",")).settings
