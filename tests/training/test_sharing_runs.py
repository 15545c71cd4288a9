"""Runs whose layers share: trained, resumed, stored with their templates once, folded."""

import json
import shutil
from pathlib import Path

import pytest
from torch import nn
from typer.testing import CliRunner

from paretorch import SoftSharing, compress
from paretorch.cli.app import app
from paretorch.training import Recipe
from paretorch.training.fit import similarities
from paretorch.training.recipe_values import recipe_from
from paretorch.workflows.studies.study import load_study, study_names
from paretorch.zoo.networks import shares

_SMALL = ["--network", "swrn-16-1-1", "--data", "digits", "--epochs", "1", "--set", 'network_options={"channels": 1}']


def _pare(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def test_a_network_that_shares_is_trained_so(tmp_path: Path) -> None:
    out = tmp_path / "run"
    _pare("train", *_SMALL, "--device", "cpu", "--out", str(out))
    row = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
    assert row["similarity"] == pytest.approx(1.0)
    result = json.loads((out / "result.json").read_text())
    assert result["dense_bytes"] < 4 * 130_000  # 175 k parameters without sharing
    assert result["similarities"] == row["similarities"]
    assert [len(matrix) for matrix in result["similarities"]] == [2, 2, 2]
    told = _pare("fold", str(out))
    assert "2 layers are 1; layer 1 runs twice; exact" in told
    page = (out / "similarities.html").read_text()
    assert page.count("<h3>epoch 1</h3>") == 3  # one a stage
    assert "default-src 'none'" in page
    told = _pare("fold", str(out), "--beside", str(shutil.copytree(out, tmp_path / "other")))
    assert (out / "similarities.html").read_text().count("<h3>other</h3>") == 3
    told = _pare("fold", str(out), "--curve", "--device", "cpu")
    points = json.loads((out / "folding.json").read_text())["points"]
    assert [point["layers"] for point in points] == [6, 5, 4, 3]
    assert all(point["threshold"] == pytest.approx(1.0) for point in points)  # one template: all are alike
    assert {round(point["measured"], 6) for point in points} == {round(result["test_accuracy"], 6)}
    assert points[0]["bytes"] >= points[-1]["bytes"]
    for picture, label in (("folding.svg", "layers left of those that share"), ("folding-threshold.svg", "threshold")):
        drawn = (out / picture).read_text()
        assert drawn.startswith("<svg")
        assert f">{label}<" in drawn
        assert ">test error in per cent<" in drawn
    assert "3 layers (threshold 1.000): test accuracy" in told
    _pare("fold", str(out), "--curve", "--only", "stages.1.*", "--device", "cpu")
    assert [point["layers"] for point in json.loads((out / "folding-stages.1.json").read_text())["points"]] == [2, 1]
    assert json.loads((out / "folding.json").read_text())["points"] == points, "the curve of the whole stays"
    page = (out / "report.html").read_text()
    assert page.count("2 layers are 1; layer 1 runs twice.") == 3


def test_similarities_are_kept_at_a_few_epochs() -> None:
    network = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    plan = compress(network, SoftSharing(templates=2), steps=4)
    kept = [epoch for epoch in range(1, 41) if similarities(plan, epoch, 40)]
    assert kept == [5, 10, 20, 30, 40]
    (matrix,) = similarities(plan, 40, 40)["similarities"]
    assert [row[i] for i, row in enumerate(matrix)] == [1.0] * 3
    assert similarities(None, 40, 40) == {}
    plan.harden()
    assert similarities(plan, 40, 40) == {}


def test_which_recipes_share() -> None:
    assert Recipe(network="swrn-28-4-2").shares
    assert recipe_from({"network": "wrn-28-4", "compression.sharing_options": {"templates": 2}}).shares
    assert not Recipe(network="wrn-28-4").shares
    assert not shares("nothing")


@pytest.mark.parametrize("name", [name for name in study_names() if name.startswith("sharing-")])
def test_the_studies_say_what_shares(name: str) -> None:
    for setting, recipe in load_study(name).settings.items():
        assert recipe.shares == setting.startswith(("swrn", "scnn"))
        assert recipe.epochs == {"sharing-shortest-paths": 250, "sharing-hundred-layers": 40}.get(name, 200)
