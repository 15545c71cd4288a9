"""A study of the user's own: a file that is checked before anything runs."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from paretorch.cli.app import app
from paretorch.errors import ConfigError
from paretorch.workflows.studies import load_study

_MINE = """
title = "Digits"
claim = "masks cost nothing"
seeds = [0, 1]
[recipe]
network = "digits-cnn"
data = "digits"
epochs = 2
[settings.dense]
[settings.cs]
pruning = "cs"
vary = {sparsity = [0.5, 0.9]}
"""


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_a_file_is_a_study_by_the_name_of_the_file(tmp_path: Path) -> None:
    study = load_study(str(write(tmp_path, _MINE)), {"epochs": 3})
    assert study.name == "mine"
    assert list(study.settings) == ["dense", "cs-0.5", "cs-0.9"]
    assert study.settings["cs-0.9"].compression.sparsity == 0.9
    assert all(recipe.epochs == 3 for recipe in study.settings.values())


def test_its_runs_are_listed(tmp_path: Path) -> None:
    words = ["study", str(write(tmp_path, _MINE)), "--dry-run", "--out", str(tmp_path / "results")]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.output
    assert told.output.count("2 epochs of digits-cnn") == 6
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('claim = "masks cost nothing"', "", "mine cannot be read: it has no claim; it needs title, claim, seeds"),
        ("seeds = [0, 1]", "seeds = [0, 1.5]", "mine: seeds should be whole numbers, 0 or more"),
        ("seeds = [0, 1]", "seeds = 3", r"mine: seeds should be a list of whole numbers, such as \[0, 1, 2\]"),
        ("seeds = [0, 1]", "seeds = [0, 0]", "give each once, not 0, 0"),
        ("seeds = [0, 1]", "seeds = [0]\nsteps = 3", "unknown field 'steps'; known are title, claim, seeds"),
        (
            "[settings.dense]",
            "[settings]\ndense = 3\n[settings.other]",
            "setting dense should be a table of recipe fields",
        ),
        ("[settings.dense]", '[settings."../x"]', r"setting \.\./x: its runs have folders of that name"),
        ("sparsity = [0.5, 0.9]", "sparsity = 0.5", "setting cs: vary should be a table of lists"),
        ("epochs = 2", "epoch = 2", "epoch"),
        ("[settings.dense]", '[[tickets]]\nmethod = "imp"\n[settings.dense]', "give one of them"),
        ("[recipe]", "[recipe", "mine cannot be read"),
    ],
)
def test_what_is_wrong_in_it_is_one_sentence(tmp_path: Path, before: str, after: str, message: str) -> None:
    path = write(tmp_path, _MINE.replace(before, after))
    with pytest.raises(ConfigError, match=message) as raised:
        load_study(str(path))
    assert "\n" not in str(raised.value).strip()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Cannot read the study .*none.toml: No such file"):
        load_study(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="dense-resnet20 is a study of the package"):
        load_study(str(write(tmp_path, _MINE, "dense-resnet20.toml")))
    with pytest.raises(ConfigError, match=r"a study of your own is a file, such as mine\.toml"):
        load_study("mine")
