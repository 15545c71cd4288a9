"""`pare tune` as a user meets it: what is printed, what is left, what happens when it is stopped."""

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from paretorch.cli.app import app
from paretorch.cli.tune import write
from paretorch.training.fit import Trainer
from paretorch.training.recipe_values import PLACES, recipe_from
from paretorch.training.runtime import Runtime
from paretorch.workflows.tuning import Found
from paretorch.workflows.tuning.trial import Trial

_SMALL = ["--network", "digits-cnn", "--data", "digits", "--device", "cpu", "--set", 'network_options={"width": 2}']
_QUICK = [*_SMALL, "--epochs", "1", "--batch", "256"]


def _tune(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["tune", *words], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


def test_a_search_recommends_and_leaves_its_pictures(tmp_path: Path) -> None:
    words = [*_QUICK, "--trials", "5", "--alphas", "0.01,1,1e9", "--epsilons", "1e-8,0.1", "--out", str(tmp_path)]
    told = _tune(*words, "--method", "grid")
    lines = told.strip().splitlines()
    assert len(lines) == 6
    assert "lr 1e+09, eps 1e-08: diverged" in told
    assert lines[-1].startswith("Recommended: --optimizer avagrad --lr ")
    assert "best of 5 settings, 1 diverged" in lines[-1]
    found = json.loads((tmp_path / "tuning.json").read_text())
    assert [row["error"] is None for row in found["trials"]] == [False] * 4 + [True]
    assert found["best"][2] == min(row["error"] for row in found["trials"][:4])
    assert "diverged" in (tmp_path / "heatmap.svg").read_text()
    assert "Suboptimality" in (tmp_path / "suboptimality.svg").read_text()
    assert not list(tmp_path.glob("*/checkpoint.pt")), "finished trials keep no checkpoint"
    # The same command again has nothing to do; with more trials it continues.
    assert _tune(*words, "--method", "grid").strip() == lines[-1]
    assert len(_tune(*words[:-4], *words[-4:], "--trials", "6").strip().splitlines()) == 2
    assert "weight_decay (there 0.0005, now 0.1)" in _tune(*words, "--weight-decay", "0.1", code=2)


def test_the_recommended_setting_is_the_one_that_was_tried(tmp_path: Path) -> None:
    words = [*_QUICK, "--trials", "2", "--alphas", "0.12345678,0.12345679", "--epsilons", "0.1", "--out", str(tmp_path)]
    told = _tune(*words)
    best = json.loads((tmp_path / "tuning.json").read_text())["best"]
    assert f"Recommended: --optimizer avagrad --lr {best[0]} --set eps=0.1 " in told
    assert {one.name for one in tmp_path.iterdir() if one.is_dir()} == {"lr0.12345678-eps0.1", "lr0.12345679-eps0.1"}


def test_stopped_and_resumed_within_a_trial(tmp_path: Path, monkeypatch) -> None:
    words = [
        *_SMALL,
        "--epochs",
        "3",
        "--trials",
        "2",
        "--out",
        str(tmp_path),
        "--alphas",
        "0.1,1",
        "--epsilons",
        "0.1",
    ]
    save, saved = Trainer._save, []

    def stopping(self, record=None) -> None:
        save(self, record)
        saved.append(self._epoch)
        if len(saved) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_save", stopping)
    assert "Stopped." in _tune(*words, code=130)
    assert len(_tune(*words).strip().splitlines()) == 3
    assert saved == [1, 2, 3, 1, 2, 3], "the interrupted trial goes on from its checkpoint"


def test_a_killed_worker_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [
        *_SMALL,
        "--epochs",
        "2000",
        "--trials",
        "1",
        "--alphas",
        "0.1",
        "--epsilons",
        "0.1",
        "--out",
        str(tmp_path),
    ]
    storage = ["--storage", f"sqlite:///{tmp_path}/tune.db"]
    command = [sys.executable, "-m", "paretorch.cli", "tune", *words, *storage]
    worker = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    checkpoint = tmp_path / "lr0.1-eps0.1" / "checkpoint.pt"
    deadline = time.time() + 60
    while not checkpoint.exists() and time.time() < deadline:
        time.sleep(0.1)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    assert checkpoint.exists()
    import optuna

    study = optuna.load_study(study_name="tuning", storage=f"sqlite:///{tmp_path}/tune.db")
    assert [trial.state.name for trial in study.trials] == ["RUNNING"]
    from paretorch.workflows import tuning

    monkeypatch.setenv("PARE_PATIENCE", "1")
    facts = {key: value for key, value in study.user_attrs["facts"].items() if key not in ("alphas", "epsilons")}
    found = tuning.search(lambda a, e, beat: 1.0, [0.1], [0.1], trials=1, storage=storage[1], facts=facts)
    assert found.best == (0.1, 0.1, 1.0)
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE"]


def test_a_storage_with_flat_facts_is_continued(tmp_path: Path) -> None:
    """The fields of recipes were flat until 0.1.0."""
    import optuna

    url = f"sqlite:///{tmp_path}/tune.db"
    words = [*_QUICK, "--alphas", "0.01,0.1", "--epsilons", "0.1", "--out", str(tmp_path), "--storage", url]
    _tune(*words, "--trials", "1")
    study = optuna.load_study(study_name="tuning", storage=url)
    facts = study.user_attrs["facts"]
    flat = {name: facts[place] for name, place in PLACES.items() if name not in ("lr", "eps")}
    study.set_user_attr("facts", {**flat, "alphas": facts["alphas"], "epsilons": facts["epsilons"]})
    assert "[2/2]" in _tune(*words, "--trials", "2")
    assert "differs in data.batch" in _tune(*words, "--trials", "2", "--batch", "32", code=2)


def test_values_are_put_in_order(tmp_path: Path) -> None:
    words = [*_QUICK, "--method", "grid", "--epsilons", "0.1", "--out", str(tmp_path)]
    _tune(*words, "--trials", "1", "--alphas", "1,0.01,0.1")
    assert "lr 0.01, eps" in _tune(*words, "--trials", "2", "--alphas", "0.1,1,0.01"), "the same search goes on"


def test_sgd_has_a_learning_rate_alone(tmp_path: Path) -> None:
    told = _tune(*_QUICK, "--optimizer", "sgd", "--alphas", "0.01,0.1,1", "--trials", "9", "--out", str(tmp_path))
    assert len(told.strip().splitlines()) == 4
    assert "eps" not in told


def test_nothing_but_divergence(tmp_path: Path) -> None:
    told = _tune(*_QUICK, "--alphas", "1e12,1e13", "--epsilons", "1", "--trials", "2", "--out", str(tmp_path), code=1)
    assert "smaller learning rates" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--method", "bayes"], "choose from cgld"),
        (["--alphas", "much"], "--alphas takes numbers"),
        (["--alphas", "0.1,-1"], "--alphas takes positive numbers"),
        (["--alphas", "0.1,nan"], "--alphas takes positive numbers"),
        (["--alphas", "0.1,0.10"], "each once"),
        (["--epsilons", "0,0.1"], "--epsilons takes positive numbers"),
        (["--optimizer", "sgd", "--epsilons", "0.1"], "sgd has no ε"),
        (["--set", "lr=0.5"], "pare tune searches lr"),
        (["--set", "eps=0.5"], "pare tune searches eps"),
        (["--network", "nonsense"], "nonsense"),
        (["--storage", "nonsense://x"], "storage"),
        (["--trials", "0"], "at least one"),
        (["--validation", "0"], "never by the test set: set validation, such as 5000"),
        (["--set", "validation=0"], "never by the test set"),
    ],
)
def test_wrong_arguments(tmp_path: Path, words: list[str], said: str) -> None:
    assert said in _tune(*_QUICK, "--out", str(tmp_path), *words, code=2)
    assert not (tmp_path / "trials.journal").exists()


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch) -> None:
    for name in [name for name in sys.modules if name.startswith("paretorch.workflows.tuning.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "paretorch[tune]" in _tune(*_QUICK, "--out", str(tmp_path), code=1)


def test_workers_that_write_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    trial = Trial(recipe_from({"network": "digits-cnn", "data.name": "digits"}), Runtime(), tmp_path)
    found = Found([0.1, 1.0], [0.1], np.array([[5.0], [4.0]]), np.ones((2, 1), bool), [(0, 0), (1, 0)])

    def work(_: int) -> None:
        for _ in range(25):
            write(found, trial)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert json.loads((tmp_path / "tuning.json").read_text())["best"] == [1.0, 0.1, 4.0]
    for picture in tmp_path.glob("*.svg"):
        ET.parse(picture)
    assert {one.name for one in tmp_path.iterdir()} == {"tuning.json", "heatmap.svg", "suboptimality.svg"}
