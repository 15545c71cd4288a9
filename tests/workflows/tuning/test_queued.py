"""Trials as jobs of the queue, with real processes: settings are trained once, the dead are replaced, and errors are those of one process."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from paretorch.cli.app import app
from paretorch.errors import ConfigError, PareError
from paretorch.training.recipe_values import recipe_from
from paretorch.training.runtime import Runtime
from paretorch.workflows import tuning
from paretorch.workflows.queue import Job, LocalEngine
from paretorch.workflows.tuning.queued import QueuedTrials
from paretorch.workflows.tuning.trial import Trial
from tests.workflows.queue.test_jobs import process_of, wait

_WORDS = ["--network", "digits-cnn", "--set", 'network_options={"width": 2}', "--data", "digits", "--batch", "360"]
_SEARCH = ["--method", "grid", "--epsilons", "0.1", "--device", "cpu"]


def words(folder: Path, alphas: str, epochs: int, *more: str) -> list[str]:
    count = str(len(alphas.split(",")))
    search = [*_SEARCH, "--alphas", alphas, "--trials", count, "--epochs", str(epochs)]
    return ["tune", *_WORDS, *search, "--out", str(folder), *more]


def errors(folder: Path) -> dict[float, float | None]:
    """What a search found, by learning rate."""
    return {row["lr"]: row["error"] for row in json.loads((folder / "tuning.json").read_text())["trials"]}


def rows(folder: Path) -> dict[str, list[int]]:
    """The epochs in the metrics of each setting."""
    return {
        path.parent.name: [json.loads(line)["epoch"] for line in path.read_text().splitlines()]
        for path in folder.glob("lr*/metrics.jsonl")
    }


@pytest.mark.timeout(240)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are found in /proc")
def test_a_killed_process_is_replaced_and_errors_are_those_of_one_process(tmp_path: Path) -> None:
    alone, queued = tmp_path / "alone", tmp_path / "queued"
    killed: list[int] = []

    def kill_one() -> None:
        place = queued / "lr0.05-eps0.1"
        wait(lambda: process_of(place) and (place / "checkpoint.pt").exists())
        killed.append(process_of(place))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    done = CliRunner().invoke(app, words(queued, "0.05", 4, "--parallel", "2"))
    killer.join()
    assert done.exit_code == 0, done.output
    assert killed
    assert "lr0.05-eps0.1: its process was killed by SIGKILL; another one continues it" in done.output
    assert "Recommended: --optimizer avagrad --lr 0.05" in done.output
    assert CliRunner().invoke(app, words(alone, "0.05", 4, "--quiet")).exit_code == 0
    assert errors(queued) == errors(alone)
    assert rows(queued) == rows(alone) == {"lr0.05-eps0.1": [1, 2, 3, 4]}


@pytest.mark.faults
@pytest.mark.timeout(400)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are found in /proc")
def test_a_command_that_dies_loses_no_trial_and_trains_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARE_PATIENCE", "5")
    alphas, both = "0.02,0.05,0.1,0.2,0.5,1", tmp_path / "both"
    command = [sys.executable, "-m", "paretorch.cli", *words(both, alphas, 12, "--parallel", "2")]
    first, second = (subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2))
    wait(lambda: len(list(both.glob("lr*/checkpoint.pt"))) >= 2)
    first.kill()
    told, _ = second.communicate()
    first.communicate()
    assert second.returncode == 0, told
    serial = tmp_path / "serial"
    assert CliRunner().invoke(app, words(serial, alphas, 12, "--quiet")).exit_code == 0
    assert errors(both) == errors(serial)
    assert rows(both) == rows(serial)


class Instant:
    """Trains a setting in this thread, at once."""

    sees_deaths = True

    def __init__(self, trial: Trial, places: int, fails: bool = False) -> None:
        self.places, self.started = places, list[str]()
        self._trial, self._fails = trial, fails

    def start(self, job: Job, claim: int) -> "_Ended":
        self.started.append(job.name)
        alpha, eps = map(float, job.words[job.words.index("--setting") + 1].split(","))
        if self._fails:
            job.log.write_text("pare: no space left on device\n")
        else:
            self._trial.train_once(alpha, eps)
        return _Ended(int(self._fails))

    def stop(self, processes: Any) -> None:
        pass


class _Ended:
    def __init__(self, code: int) -> None:
        self._code = code

    def poll(self) -> int:
        return self._code


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    values = {"network": "digits-cnn", "network_options": {"width": 2}, "data": "digits", "batch": 720, "epochs": 1}
    made = Trial(recipe_from({**values, "validation": 200}), Runtime(device="cpu", progress="quiet"), tmp_path / "tune")
    made.check()
    return made


def test_a_setting_that_is_known_in_its_folder_is_not_trained_again(trial: Trial, tmp_path: Path) -> None:
    """As where a command died after its process had finished, before the storage knew."""
    engine = Instant(trial, 1)
    place = {"method": "grid", "trials": 2}
    first = tuning.search(QueuedTrials(trial, engine), [0.1, 0.2], [0.1], storage=tmp_path / "a.journal", **place)
    again = tuning.search(QueuedTrials(trial, engine), [0.1, 0.2], [0.1], storage=tmp_path / "b.journal", **place)
    assert engine.started == ["lr0.1-eps0.1", "lr0.2-eps0.1"]
    assert first.errors.tolist() == again.errors.tolist()
    (trial.place(0.1, 0.1) / "trial.json").write_text('{"recipe": {}, "error": 0.0}')
    assert trial.result(0.1, 0.1) is None, "of another recipe"


def test_a_setting_that_diverges_is_tried_once(trial: Trial, tmp_path: Path) -> None:
    engine = Instant(trial, 1)
    search = partial(tuning.search, QueuedTrials(trial, engine), [0.1, 1e9], [0.1], method="grid", trials=2)
    for name in ("a.journal", "b.journal"):
        found = search(storage=tmp_path / name)
        assert np.isnan(found.errors[1, 0])
        assert found.best[:2] == (0.1, 0.1)
    assert engine.started == ["lr0.1-eps0.1", "lr1e+09-eps0.1"]


def test_a_trial_that_fails_is_named_and_ends_the_search(trial: Trial, tmp_path: Path) -> None:
    train = QueuedTrials(trial, Instant(trial, 2, fails=True))
    with pytest.raises(PareError, match=r"lr0\.\d-eps0\.1 failed: no space left on device; the same command continues"):
        tuning.search(train, [0.1, 0.2], [0.1], method="grid", trials=2, storage=tmp_path / "j", workers=2)


def test_workers_are_stopped_when_one_of_them_fails(tmp_path: Path) -> None:
    begun, stopped = threading.Event(), list[float]()

    def train(alpha: float, eps: float, beat: Any) -> float:
        if alpha == 1.0:
            assert begun.wait(60)
            raise PareError("no space left on device")
        begun.set()
        try:
            while True:
                beat()
                time.sleep(0.01)
        except KeyboardInterrupt:
            stopped.append(alpha)
            raise

    with pytest.raises(PareError, match="no space left"):
        tuning.search(train, [1.0, 2.0], [1.0], method="grid", trials=2, workers=2, storage=tmp_path / "j")
    assert stopped == [2.0]


@pytest.mark.parametrize("method", ["cgld", "random", "grid"])
def test_threads_of_one_command_try_each_setting_once(method: str, tmp_path: Path) -> None:
    seen: list[tuple[float, float]] = []
    told: list[int] = []

    def train(alpha: float, eps: float, beat: Any) -> float:
        seen.append((alpha, eps))
        time.sleep(0.02)
        return alpha + eps

    found = tuning.search(
        train,
        [1.0, 2.0, 3.0, 4.0],
        [1.0, 2.0],
        method=method,
        trials=8,
        workers=3,
        on_trial=lambda found, alpha, eps: told.append(len(found.order)),
    )
    assert len(seen) == len(set(seen)) == 8
    assert found.best == (1.0, 1.0, 2.0)
    assert len(told) == 8


def test_no_workers() -> None:
    with pytest.raises(ConfigError, match="A search has at least 1 worker, not 0"):
        tuning.search(lambda a, e, beat: a, [1.0], [1.0], workers=0)


def test_engines_are_chosen_as_for_studies(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, words(tmp_path / "t", "0.1", 1, "--engine", "slurm"))
    assert done.exit_code == 2
    assert "There is no engine 'slurm': use local, auto, or ray://HOST" in done.output
    assert not (tmp_path / "t").exists()
    assert LocalEngine(3).places == 3
