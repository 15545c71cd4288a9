"""Trackers beside metrics.jsonl: the same numbers at the same steps, also after a resume, and without a network."""

import json
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import paretorch as pt
from paretorch.errors import ConfigError, MissingExtraError
from paretorch.training import Recipe, Runtime, Tracking, train
from paretorch.training.fit import Trainer
from paretorch.training.folder import read_history
from paretorch.training.recipe_values import recipe_from

_ALL = ("tensorboard", "wandb", "mlflow")
_RUNTIME = Runtime(device="cpu", progress="quiet", track=_ALL)
Told = list[tuple[int, float]]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def recipe(epochs: int) -> Recipe:
    options = {"network": "digits-cnn", "network_options": {"width": 2}, "data": "digits", "batch": 256, "lr": 0.05}
    return recipe_from({**options, "epochs": epochs, "compression.sparsity": 0.5})


def in_tensorboard(folder: Path, name: str) -> Told:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # each takes long to import

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(one.step, one.value) for one in events.Scalars(name)]


def wandb_records(content: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format: blocks of 32 kB, of pieces with a checksum, a length and a kind."""
    place, record = 7, b""
    while place + 7 <= len(content):
        if 2**15 - place % 2**15 < 7:
            place += 2**15 - place % 2**15
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


def in_wandb(folder: Path, name: str) -> Told:
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # its own process writes the file, and may still do so after the run has ended
    found, runs = [], set()
    for path in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
        runs.add(path.name)
        for data in wandb_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            row = {one.key or one.nested_key[0]: json.loads(one.value_json) for one in record.history.item}
            if name in row:
                found.append((row["step"], row[name]))
    assert len(runs) == 1  # one run, whose parts go together when they are uploaded
    return found


def in_mlflow(folder: Path, name: str) -> Told:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}")
    (run,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
    return [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, name)]


_READ: dict[str, Callable[[Path, str], Told]] = {
    "tensorboard": in_tensorboard,
    "wandb": in_wandb,
    "mlflow": in_mlflow,
}


def rows(folder: Path, name: str) -> list[Any]:
    return [(row["step"], pytest.approx(row[name], rel=1e-6)) for row in read_history(folder) if name in row]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after the second epoch was written and before it was saved, so that it is taken again."""
    folder = tmp_path_factory.mktemp("run")
    save, saved = Trainer._save, []

    def stop(trainer: Trainer, *args: Any) -> None:
        saved.append(trainer)
        if len(saved) == 2:
            raise KeyboardInterrupt
        save(trainer, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setattr(Trainer, "_save", stop)
        with pytest.raises(KeyboardInterrupt):
            train(recipe(3), folder, _RUNTIME)
        patch.setattr(Trainer, "_save", save)
        train(recipe(3), folder, _RUNTIME, resume=True)
    return folder


@pytest.mark.parametrize("tracker", _ALL)
def test_a_resumed_run_has_each_row_once(resumed: Path, tracker: str) -> None:
    for name in ("loss", "test_accuracy", "sparsity"):
        assert _READ[tracker](resumed, name) == rows(resumed, name)
    assert len(rows(resumed, "loss")) == 3


@pytest.mark.parametrize("tracker", _ALL)
def test_a_loop_of_ones_own(tmp_path: Path, tracker: str) -> None:
    model = torch.nn.Linear(8, 8)
    plan = pt.compress(model, pt.ContinuousSparsification(target=0.5), steps=3)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.1)
    with Tracking(tracker, tmp_path) as tracking:
        for number in range(3):
            model(torch.ones(2, 8)).square().mean().backward()
            optimizer.step()
            plan.step()
            optimizer.zero_grad()
            tracking.log(plan, loss=float(number))
    assert _READ[tracker](tmp_path, "loss") == [(1, 0.0), (2, 1.0), (3, 2.0)]
    assert _READ[tracker](tmp_path, "sparsity")[-1] == (3, pytest.approx(plan.metrics()["sparsity"]))


@pytest.mark.parametrize("tracker", _ALL)
def test_without_the_package_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str) -> None:
    monkeypatch.setitem(sys.modules, tracker, None)
    with pytest.raises(MissingExtraError, match=r"paretorch\[track\]"):
        train(recipe(1), tmp_path / "run", Runtime(device="cpu", progress="quiet", track=(tracker,)))
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tensorboard, wandb, mlflow"):
        Tracking("comet", tmp_path)
