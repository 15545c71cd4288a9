"""Studies: their files, their runs, their summaries."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paretorch.cli.app import app
from paretorch.errors import ConfigError, PareError
from paretorch.training.recipe_values import changed
from paretorch.workflows.queue import LocalEngine
from paretorch.workflows.queue.processes import mps
from paretorch.workflows.studies import load_study, run_study, study_names
from paretorch.workflows.studies.results import collect, summarize
from paretorch.workflows.studies.study import Study, parse_study

_SMALL = """
title = "Digits"
claim = "it runs"
seeds = [0, 1]
[recipe]
network = "digits-cnn"
network_options = {width = 4}
data = "digits"
epochs = 1
[settings.slow]
lr = 0.01
[settings.fast]
lr = 0.05
"""


@pytest.mark.parametrize("name", study_names())
def test_every_study_can_be_read(name: str) -> None:
    study = load_study(name)
    assert study.claim
    assert len(study.jobs()) == len(study.seeds) * len(study.settings)


def test_settings_and_seeds_make_jobs_and_changes_reach_all() -> None:
    study = parse_study("small", _SMALL, {"epochs": 7})
    assert [name for name, _ in study.jobs()] == ["slow-seed0", "fast-seed0", "slow-seed1", "fast-seed1"]
    assert {(recipe.optimizer.lr, recipe.seed, recipe.epochs) for _, recipe in study.jobs()} == {
        (0.01, 0, 7),
        (0.05, 0, 7),
        (0.01, 1, 7),
        (0.05, 1, 7),
    }


def test_unknown_and_broken_studies_are_named() -> None:
    with pytest.raises(ConfigError, match="dense-resnet20"):
        load_study("dense-resnet2O")
    with pytest.raises(ConfigError, match=r"small cannot be read.*claim"):
        parse_study("small", 'title = "a"\nseeds = [0]\n[recipe]\n')
    with pytest.raises(ConfigError, match="colour"):
        parse_study("small", _SMALL + "colour = 1\n")


def test_the_summary_has_mean_and_spread() -> None:
    study = parse_study("small", _SMALL)
    values = {"slow-seed0": 0.5, "slow-seed1": 0.7, "fast-seed0": 0.9, "fast-seed1": 0.9}
    found = summarize(study, {name: {"test_accuracy": value, "note": "x"} for name, value in values.items()})
    slow = found["settings"]["slow"]["test_accuracy"]
    assert slow["mean"] == pytest.approx(0.6)
    assert slow["std"] == pytest.approx(0.02**0.5)
    assert (slow["min"], slow["max"], slow["n"]) == (0.5, 0.7, 2)
    assert "note" not in found["settings"]["fast"]


@pytest.fixture(scope="module")
def study() -> Study:
    return parse_study("small", _SMALL.replace("[settings.slow]\nlr = 0.01\n", ""))


def test_a_study_runs_its_jobs_and_is_not_run_twice(study: Study, tmp_path: Path) -> None:
    told: list[str] = []
    places = {"results": tmp_path / "results", "runs": tmp_path / "runs"}
    first = run_study(study, **places, engine=LocalEngine(2), options=["--device", "cpu"], log=told.append)
    assert len(told) == 2
    raw = json.loads((tmp_path / "results" / "small" / "fast-seed1.json").read_text())
    assert raw["seed"] == raw["recipe"]["seed"] == 1
    assert len(raw["metrics"]) == 1
    assert {"command", "hardware", "torch", "paretorch"} <= set(raw["environment"])
    log = tmp_path / "runs" / "small" / "fast-seed1" / "metrics.jsonl"
    before = log.read_bytes()
    again = run_study(study, **places, engine=LocalEngine(2), options=["--device", "cpu"], log=told.append)
    assert again["settings"] == first["settings"]
    assert log.read_bytes() == before
    other = replace(study, settings={"fast": changed(study.settings["fast"], {"optimizer.lr": 0.3})})
    with pytest.raises(ConfigError, match=r"fast-seed0.json .*lr \(there 0.05, now 0.3\).*remove the file"):
        run_study(other, tmp_path / "results", tmp_path / "elsewhere", log=told.append)
    assert not (tmp_path / "elsewhere").exists()


def test_failed_runs_are_told(study: Study, tmp_path: Path) -> None:
    told: list[str] = []
    one = replace(study, seeds=(0,))
    with pytest.raises(PareError, match="1 of 1 runs failed"):
        run_study(one, tmp_path / "results", tmp_path / "runs", options=["--device", "toaster"], log=told.append)
    assert len(told) == 1
    assert "is no device" in told[0]


def test_a_run_that_diverges_is_over(tmp_path: Path) -> None:
    """Where rates are compared some are too large: that is a finding, and no reason to try the same again."""
    study = parse_study("small", _SMALL.replace("lr = 0.05", "lr = 1e9").replace("[0, 1]", "[0]"))
    done = {"recipe": dict(study.jobs())["slow-seed0"].as_dict(), "result": {"test_accuracy": 0.9}}
    (tmp_path / "results" / "small").mkdir(parents=True)
    (tmp_path / "results" / "small" / "slow-seed0.json").write_text(json.dumps(done))
    told: list[str] = []
    summary = run_study(study, tmp_path / "results", tmp_path / "runs", log=told.append)
    assert set(summary["settings"]) == {"slow"}
    assert summary["diverged"] == ["fast-seed0"]
    assert "fast-seed0: diverged: The loss is" in told[-1]
    stored = json.loads((tmp_path / "results" / "small" / "fast-seed0.json").read_text())
    assert "try a lower learning rate" in stored["result"]["diverged"]
    found, diverged = collect(study, tmp_path / "results" / "small")
    assert (list(found), diverged) == (["slow-seed0"], ["fast-seed0"])
    told.clear()
    run_study(study, tmp_path / "results", tmp_path / "elsewhere", log=told.append)
    assert all("done before" in line for line in told)
    assert not (tmp_path / "elsewhere").exists()


def test_a_table_tells_what_diverged(tmp_path: Path) -> None:
    rates = load_study("optim-lstm300-rates")
    target = tmp_path / rates.name
    target.mkdir()
    results = {"adam-0.004-seed0": {"test_bpc": 1.5}, "avagrad-1500-seed0": {"diverged": "The loss is nan"}}
    recipes = dict(rates.jobs())
    for name, result in results.items():
        (target / f"{name}.json").write_text(json.dumps({"recipe": recipes[name].as_dict(), "result": result}))
    told = CliRunner().invoke(app, ["study", rates.name, "--table", "--out", str(tmp_path)]).output
    assert "adam-0.004" in told
    assert "Diverged: avagrad-1500-seed0" in told
    (target / "adam-0.004-seed0.json").unlink()
    told = CliRunner().invoke(app, ["study", rates.name, "--table", "--out", str(tmp_path)]).output
    assert told.startswith("Diverged: avagrad-1500-seed0")


def test_each_seed_counts_once() -> None:
    """Two runs of one seed would share a folder, and their spread would be 0."""
    with pytest.raises(ConfigError, match="each once, not 0, 1, 0"):
        replace(parse_study("small", _SMALL), seeds=(0, 1, 0))
    for words in (["--seeds", "0,0"], ["--set", "seed=7"]):
        result = CliRunner().invoke(app, ["study", "dense-resnet20", "--table", *words])
        assert result.exit_code == 2
        assert "seed" in result.output


def test_without_layers_to_show_a_study_says_so(tmp_path: Path) -> None:
    study = load_study("dense-resnet20")
    ((name, recipe), *_) = study.jobs()
    (tmp_path / study.name).mkdir()
    content = {"recipe": recipe.as_dict(), "result": {"test_accuracy": 0.9}}
    (tmp_path / study.name / f"{name}.json").write_text(json.dumps(content))
    result = CliRunner().invoke(app, ["study", study.name, "--layers", "--out", str(tmp_path)])
    assert result.output == "No run of dense-resnet20 so far compresses a layer.\n"


def test_a_spread_is_shown_of_several_seeds_alone(tmp_path: Path) -> None:
    dense = load_study("dense-resnet20")
    target = tmp_path / dense.name
    target.mkdir()
    for share, (name, recipe) in zip((0.5, 0.7, 0.9), dense.jobs(), strict=True):
        content = {"recipe": recipe.as_dict(), "result": {"test_accuracy": share}}
        (target / f"{name}.json").write_text(json.dumps(content))
    words = ["study", dense.name, "--table", "--out", str(tmp_path)]
    told = CliRunner().invoke(app, words).output
    assert told.splitlines()[2].split() == ["run", "70.00", "%", "±", "20.00", "%", "3"]
    told = CliRunner().invoke(app, [*words, "--seeds", "0"]).output
    assert told.splitlines()[2].split() == ["run", "50.00", "%", "1"]
    assert told.count(dense.claim) == 1


def test_without_the_service_a_study_runs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with mps(True) as running:
        assert not running


def test_a_study_ends_in_time(tmp_path: Path) -> None:
    study = parse_study("small", _SMALL.replace("[settings.slow]\nlr = 0.01\n", ""), {"epochs": 10**6})
    places = {"results": tmp_path / "results", "runs": tmp_path / "runs"}
    with pytest.raises(PareError, match=r"2 of 2 runs not finished in 0\.0 minutes \(fast-seed0, fast-seed1\)"):
        run_study(study, **places, minutes=0.0, log=lambda line: None)
    assert not (tmp_path / "runs").exists()
    with pytest.raises(PareError, match="the same command continues"):
        run_study(study, **places, minutes=0.05, options=["--device", "cpu"], log=lambda line: None)
    assert (tmp_path / "runs").exists()
    assert subprocess.run(["pgrep", "-f", str(tmp_path)], check=False).returncode == 1  # none is left running
