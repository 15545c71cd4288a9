"""The studies of similarities, tried small: their runs are what the pictures are made of."""

import json
import math
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paretorch.cli.app import app
from paretorch.errors import ConfigError
from paretorch.training import Runtime, train
from paretorch.training.recipe_values import changed
from paretorch.workflows.studies import load_study, study_names
from paretorch.workflows.studies.pictures import by_distance, describe_similarities, similarities

_TINY = {
    "sharing-similarities": {"network": "swrn-16-1-2", "data": "digits", "network_options": {"channels": 1}},
    "sharing-hundred-layers": {
        "network_options": {"layers": 6, "width": 4},
        "data_options": {"size": 6, "count": 32, "test_count": 8},
    },
}


@pytest.mark.parametrize("name", _TINY)
def test_a_run_has_its_picture(tmp_path: Path, name: str) -> None:
    (recipe,) = load_study(name, _TINY[name]).settings.values()
    train(changed(recipe, {"epochs": 1, "data.batch": 16}), tmp_path / "run", Runtime(device="cpu", progress="quiet"))
    shown = CliRunner().invoke(app, ["fold", str(tmp_path / "run"), "--threshold", "0.99"])
    assert shown.exit_code == 0, shown.output
    page = (tmp_path / "run" / "folding.html").read_text()
    assert re.search(r"<svg", page)


def test_the_pictures_of_a_study(tmp_path: Path) -> None:
    words = ["study", "sharing-similarities", "--out", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    changes = ["network=swrn-22-1-2", "data=digits", 'network_options={"channels": 1}', "epochs=1", "batch=64"]
    options = [word for change in changes for word in ("--set", change)]
    nothing = CliRunner().invoke(app, [*words, *options, "--similarities"])
    assert nothing.exit_code == 2
    assert "No run of sharing-similarities" in nothing.output
    assert CliRunner().invoke(app, [*words, *options, "--seeds", "0,1", "--device", "cpu"]).exit_code == 0
    shown = CliRunner().invoke(app, [*words, *options, "--similarities"])
    assert shown.exit_code == 0, shown.output
    assert len(re.findall(r"seed[01]: (\d\.\d\d / \d\.\d\d(, )?){3}", shown.output)) == 2
    page = (tmp_path / "results" / "sharing-similarities" / "similarities.html").read_text()
    assert page.count("<svg") == 6
    assert "Group 1: 4 layers" in page


def test_a_chessboard_is_told_by_what_is_an_even_number_apart() -> None:
    board = [[float((i + j) % 2 == 0) for j in range(6)] for i in range(6)]
    assert by_distance(board) == (1.0, 0.0)
    even, odd = by_distance([[1.0, 0.3], [0.3, 1.0]])
    assert math.isnan(even)
    assert odd == 0.3
    assert describe_similarities("run", [[[1.0, 0.3], [0.3, 1.0]]]) == "run: – / 0.30"


def test_other_networks_are_not_put_side_by_side(tmp_path: Path) -> None:
    study = load_study("sharing-wrn28-4").only(["swrn-2", "swrn-4"])
    for name, count in (("swrn-2-seed0", 6), ("swrn-4-seed0", 5)):
        recipe = dict(study.jobs())[name].as_dict()
        row = {"epoch": 1, "phase": "search", "similarities": [[[1.0] * count] * count]}
        content = {"run": name, "recipe": recipe, "result": {"test_accuracy": 0.5}, "metrics": [row]}
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="swrn-4-seed0 has other groups of layers than swrn-2-seed0"):
        similarities(study, tmp_path)


def test_the_page_names_every_sharing_study() -> None:
    page = (Path(__file__).parents[3] / "docs" / "sharing.md").read_text()
    assert set(re.findall(r"pare study (sharing-[\w-]+)", page)) == {
        n for n in study_names() if n.startswith("sharing-")
    }
