"""Every call of every save path is made to fail, to fall short, and to be the last: a file is the old one or the new one."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from paretorch.deploy import load, save
from paretorch.errors import PareError
from paretorch.support.checked_files import read_newest
from paretorch.training.checkpoint import Checkpoint
from paretorch.training.files import save_tensors, write_atomically
from paretorch.training.folder import RunFolder, read_history
from paretorch.training.recipe import DataRecipe, Recipe
from paretorch.workflows.queue import Claims, Silence
from tests.faults.inject import DEATHS, MODES, Faults, in_child

RECIPE = Recipe("digits-cnn", data=DataRecipe("digits"))


@dataclass(frozen=True)
class SavePath:
    """How a file is written: `prepare` makes version 1, `save` version 2, `read` tells which one is there."""

    prepare: Callable[[Path], None]
    save: Callable[[Path], None]
    read: Callable[[Path], int]


def _checkpoint(version: int) -> Checkpoint:
    state = {"w": torch.full((300,), float(version))}
    random = {"cpu": torch.get_rng_state()}
    return Checkpoint(RECIPE.as_dict(), state, {"state": {}}, None, version, 0, 0, torch.zeros(0), random)


def _read_checkpoint(folder: Path) -> int:
    stored = Checkpoint.load(folder / "checkpoint.pt", torch.device("cpu"), resume=True)
    assert (stored.model["w"] == stored.epoch).all()
    return stored.epoch


def _network(version: int) -> nn.Module:
    network = nn.Linear(20, 20)
    nn.init.constant_(network.weight, version)
    return network


def _read_artefact(folder: Path) -> int:
    return int(load(folder / "model.pare", into=_network(0)).weight.mean().round())


def _rows(folder: Path) -> int:
    rows = read_history(folder)
    assert [row["epoch"] for row in rows] == list(range(1, len(rows) + 1))
    return len(rows)


def _append(folder: Path, version: int) -> None:
    run = RunFolder(folder, RECIPE)
    run.append({"epoch": version})


def _open_and_append(folder: Path, version: int) -> None:
    """As a run that goes on: its checkpoint says how many rows there were."""
    if version == 1:
        RunFolder(folder, RECIPE).append({"epoch": 1})
        _checkpoint(1).save(folder / "checkpoint.pt")
        return
    run = RunFolder(folder, RECIPE, resume=True)
    run.rewind(len(b'{"epoch": 1}\n'))
    run.append({"epoch": 2})


def _claim(folder: Path, version: int) -> None:
    claim = Claims(Silence(0.0)).take(folder)
    assert claim is not None
    claim.release()


def _claims(folder: Path) -> int:
    """Whatever happened, somebody can take the job."""
    silent = Silence(0.0)
    claim = Claims(silent).take(folder) or Claims(silent).take(folder)
    assert claim is not None
    claim.release()
    return 2


def _text(folder: Path) -> int:
    return int(json.loads((folder / "file").read_text())["version"])


def _write(folder: Path, version: int) -> None:
    write_atomically(folder / "file", json.dumps({"version": version, "filling": "x" * 3000}).encode())


def _path(write: Callable[[Path, int], object], read: Callable[[Path], int]) -> SavePath:
    return SavePath(lambda folder: (write(folder, 1), None)[1], lambda folder: (write(folder, 2), None)[1], read)


PATHS = {
    "a file": _path(_write, _text),
    "a checkpoint": _path(
        lambda folder, version: _checkpoint(version).save(folder / "checkpoint.pt"), _read_checkpoint
    ),
    "an artefact": _path(lambda folder, version: save(_network(version), folder / "model.pare"), _read_artefact),
    "tensors of one generation": _path(
        lambda folder, version: save_tensors(folder / "carry.pt", version),
        lambda folder: read_newest(folder / "carry.pt"),
    ),
    "a run folder": _path(_open_and_append, _rows),
    "a claim": _path(_claim, _claims),
}


def _points(path: SavePath, folder: Path) -> list[str]:
    folder.mkdir()
    path.prepare(folder)
    with Faults(folder) as counted:
        path.save(folder)
    assert path.read(folder) == 2
    return counted.calls


def _left(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".pare.")]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PATHS)
@pytest.mark.filterwarnings("ignore::paretorch.errors.PareWarning")
def test_a_file_is_the_old_or_the_new_one(name: str, mode: str, tmp_path: Path) -> None:
    path = PATHS[name]
    points = _points(path, tmp_path / "counted")
    assert "write" in points or name == "a claim"
    for at, call in enumerate(points):
        folder = tmp_path / str(at)
        folder.mkdir()
        path.prepare(folder)
        if mode in DEATHS:
            _die(path, folder, at, mode)
        else:
            told = ""
            with Faults(folder, at, mode) as faults:
                try:
                    path.save(folder)
                except PareError as error:
                    told = str(error).strip()
            assert "\n" not in told
            assert faults.happened == call
            assert not _left(folder) or call in ("unlink", "close"), "a file that was not finished is removed"
        assert path.read(folder) in (1, 2), (call, mode)
        path.save(folder)  # what is left behind is in nobody's way
        assert path.read(folder) == 2


def _die(path: SavePath, folder: Path, at: int, mode: str) -> None:
    def work() -> None:
        with Faults(folder, at, mode):
            path.save(folder)

    assert in_child(work) == -9


def test_faults_count_what_is_below_the_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with Faults(tmp_path / "in") as faults:
        write_atomically(tmp_path / "out", b"x")
    assert faults.calls == []
    with Faults(tmp_path / "in") as faults:
        write_atomically(tmp_path / "in" / "a", b"x")
        (tmp_path / "in" / "b").write_bytes(b"x")
    assert faults.calls[0] == "open"
    assert faults.calls[-2:] == ["open", "write"]
    assert {"fsync", "replace"} <= set(faults.calls)
