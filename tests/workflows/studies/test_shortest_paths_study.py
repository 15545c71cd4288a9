"""The five phases of shortest paths, tried small: every setting meets every phase, and the curves are drawn."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paretorch.cli.app import app
from paretorch.errors import ConfigError
from paretorch.training import Runtime, train
from paretorch.training.folder import read_history
from paretorch.workflows.studies import load_study
from paretorch.workflows.studies.results import store

_NAME = "sharing-shortest-paths"
_TINY = {
    "network_options": {"layers": 3, "width": 4},
    "data_options": {"limits": [2, 4], "count": 8, "test_count": 6, "size": 6},
    "epochs": 4,
    "batch": 4,
}


def test_it_is_the_thesis_curriculum() -> None:
    study = load_study(_NAME)
    for recipe in study.settings.values():
        assert recipe.data.options == {"limits": [2, 4, 6, 8, 10]}
        assert (recipe.epochs, recipe.optimizer.name, recipe.optimizer.lr, recipe.schedule.name) == (
            5 * 50,
            "adam",
            0.01,
            "constant",
        )
    options = [recipe.compression.sharing_options for recipe in study.settings.values()]
    assert [one and one.get("recurrence", 0.0) for one in options] == [None, 0.0, 0.01]


def test_from_the_phases_to_the_curves(tmp_path: Path) -> None:
    study = load_study(_NAME, _TINY)
    for name, recipe in study.jobs():
        if recipe.seed < 2:
            result = train(recipe, tmp_path / name, Runtime(device="cpu", progress="quiet"))
            store(study, name, recipe, tmp_path / name, tmp_path / "results" / _NAME, result)
            stages = [row["stage"] for row in read_history(tmp_path / name) if row["phase"] != "harden"]
            assert stages == [0, 0, 1, 1]
    options = [f"--set={name}={value!r}".replace("'", '"') for name, value in _TINY.items()]
    found = CliRunner().invoke(app, ["study", _NAME, "--curves", "--out", str(tmp_path / "results"), *options])
    assert found.exit_code == 0, found.output
    picture = (tmp_path / "results" / _NAME / "test_f1.svg").read_text()
    ElementTree.fromstring(picture)
    assert all(f">{setting}<" in picture for setting in study.settings)


def test_curves_of_nothing_are_refused(tmp_path: Path) -> None:
    from paretorch.workflows.studies.pictures import draw_curves

    with pytest.raises(ConfigError, match="no results of sharing-shortest-paths"):
        draw_curves(load_study(_NAME), tmp_path / _NAME)
