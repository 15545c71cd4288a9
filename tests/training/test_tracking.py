"""TensorBoard beside metrics.jsonl: the same numbers at the same steps, also after a resume."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from paretorch.errors import MissingExtraError
from paretorch.training import Recipe, Runtime, train
from paretorch.training.fit import Trainer
from paretorch.training.folder import read_history
from paretorch.training.recipe_values import recipe_from

_RUNTIME = Runtime(device="cpu", progress="quiet", tensorboard=True)


def recipe(epochs: int) -> Recipe:
    options = {"network": "digits-cnn", "network_options": {"width": 2}, "data": "digits", "batch": 256, "lr": 0.05}
    return recipe_from({**options, "epochs": epochs, "compression.sparsity": 0.5})


def told(folder: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(one.step, one.value) for one in events.Scalars(name)]


def rows(folder: Path, name: str) -> list[tuple[int, float]]:
    return [(row["step"], pytest.approx(row[name], rel=1e-6)) for row in read_history(folder) if name in row]


def test_the_same_numbers(tmp_path: Path) -> None:
    train(recipe(2), tmp_path, _RUNTIME)
    for name in ("loss", "test_accuracy", "sparsity"):
        assert told(tmp_path, name) == rows(tmp_path, name)
        assert len(told(tmp_path, name)) >= 2


def test_a_resumed_run_tells_every_epoch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after the second epoch was told and before it was saved, so that it is taken and told again."""
    save, saved = Trainer._save, []

    def stop(trainer: Trainer, *args: Any) -> None:
        saved.append(trainer)
        if len(saved) == 2:
            raise KeyboardInterrupt
        save(trainer, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_save", stop)
        with pytest.raises(KeyboardInterrupt):
            train(recipe(3), tmp_path, _RUNTIME)
    assert len(told(tmp_path, "loss")) == 2
    train(recipe(3), tmp_path, _RUNTIME, resume=True)
    assert told(tmp_path, "loss") == rows(tmp_path, "loss")
    assert len(rows(tmp_path, "loss")) == 3


def test_without_the_package_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"paretorch\[track\]"):
        train(recipe(1), tmp_path / "run", _RUNTIME)
    assert not (tmp_path / "run").exists()
