"""Checkpoints are whole or not there, and failing to write one is told plainly."""

import errno
import json
import os
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from paretorch.errors import ArtefactError, PareError, PareWarning
from paretorch.support.checked_files import previous
from paretorch.training.checkpoint import Checkpoint
from paretorch.training.files import write_atomically
from paretorch.training.finish import read_result

from .blobs import Make


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("true",)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PareError, match=r"no space left.*previous one is intact"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_during_training_keeps_the_last_checkpoint(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make()
    replace, calls = os.replace, []

    def sometimes_full(source: str, target: str) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", sometimes_full)
    with pytest.raises(PareError, match="--resume"):
        trainer.run()
    monkeypatch.undo()
    assert Checkpoint.load(trainer.folder.checkpoint, torch.device("cpu")).epoch == 1
    assert make(resume=True).run(resume=True)["epoch"] == 3


def test_a_disk_without_room_for_all_of_it_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(PareError, match=r"Cannot write .*file too large.*Make room"):
            write_atomically(path, b"x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not any(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_a_clear_error(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PareError, match=r"Cannot write .*file/run"):
        make(name="file/run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_a_clear_error(make: Make, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(PareError, match="permission denied"):
        make(name="locked/run")


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "hostile", "other"])
def test_a_damaged_checkpoint_without_another_is_refused(make: Make, damage: str) -> None:
    trainer = make()
    trainer.run()
    path = trainer.folder.checkpoint
    previous(path).unlink()
    content = path.read_bytes()
    if damage == "hostile":
        torch.save({"format": 1, "model": _Evil()}, path)
    elif damage == "other":
        torch.save({"format": 99}, path)
    else:
        path.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "text": b"no checkpoint"}[damage])
    with pytest.raises(ArtefactError, match=r"checkpoint.pt.* remove it to begin the run again"):
        make(resume=True).run(resume=True)
    path.unlink()
    assert make(resume=True).run(resume=True)["epoch"] == 3


@pytest.mark.parametrize(
    "changes",
    [
        *({name: "no such thing"} for name in ("recipe", "model", "optimizer", "epoch", "step", "offset", "record")),
        {"random": 3},
        {"random": {}},
        {"random": {"cpu": torch.zeros(3)}},
        {"random": {"cpu": 3}},
        {"step": -1},
        {"step": 1, "record": torch.zeros(2, 7)},
        {"recipe": {1: 2}},
        {"plan": {}},
        {"model": {1: 2}},
        {"optimizer": {"param_groups": [3], "state": {}}},
    ],
)
def test_a_checkpoint_of_other_things_is_refused(make: Make, changes: dict[str, Any]) -> None:
    trainer = make()
    trainer.run()
    path = trainer.folder.checkpoint
    torch.save({**torch.load(path, weights_only=True), **changes}, path)
    with pytest.raises(ArtefactError, match=r"checkpoint.pt"):
        make(resume=True).run(resume=True)


@pytest.mark.parametrize("text", ["[]", "3", '{"recipe": 3}', '{"recipe": null}', "{"])
def test_a_damaged_configuration_is_refused(make: Make, text: str) -> None:
    trainer = make()
    trainer.run()
    trainer.folder.config.write_text(text)
    with pytest.raises(ArtefactError, match=r"config.json is not the configuration of a run"):
        make(resume=True)


@pytest.mark.parametrize("text", ["3", "[1]", "{", "null", "{}", "[" * 100_000])
def test_a_damaged_result_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(ArtefactError, match=r"result.json is damaged"):
        read_result(tmp_path)


def test_metrics_after_the_checkpoint_are_told_once(make: Make) -> None:
    trainer = make()
    trainer.run()
    lines = trainer.folder.metrics.read_bytes()
    with open(trainer.folder.metrics, "ab") as file:
        file.write(b'{"epoch": 4, "phase"')
    assert len(trainer.folder.history()) == 3
    make(resume=True).run(resume=True)
    assert trainer.folder.metrics.read_bytes() == lines


@pytest.mark.parametrize("left", [0, 50])
def test_rows_that_were_lost_are_told(make: Make, left: int) -> None:
    """To cut the file at a length that it does not have would fill it up with zeros."""
    trainer = make()
    trainer.run()
    trainer.folder.metrics.write_bytes(rows := trainer.folder.metrics.read_bytes()[:left])
    with pytest.raises(ArtefactError, match=r"metrics.jsonl lacks rows .* remove .*checkpoint.pt"):
        make(resume=True).run(resume=True)
    assert trainer.folder.metrics.read_bytes() == rows


def test_rows_that_are_none_are_told(make: Make) -> None:
    trainer = make()
    trainer.run()
    trainer.folder.metrics.write_bytes(b"\xff" * (trainer.folder.metrics.stat().st_size - 1) + b"\n")
    with pytest.raises(ArtefactError, match=r"metrics.jsonl is damaged"):
        make(resume=True).run(resume=True)


def _flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("part", [0.05, 0.3, 0.5, 0.7, 0.95, 0.995, 0.999])
def test_a_flipped_bit_is_noticed_and_the_checkpoint_before_is_used(make: Make, part: float) -> None:
    whole, flipped = make(name="whole"), make(name="flipped")
    whole.run()
    flipped.run()
    path = flipped.folder.checkpoint
    _flip(path, int(part * path.stat().st_size))
    with pytest.warns(
        PareWarning, match=r"checkpoint.pt is missing or damaged; continuing from the previous checkpoint"
    ):
        make(name="flipped", resume=True).run(resume=True)
    expected, found = (Checkpoint.load(one.folder.checkpoint, torch.device("cpu")) for one in (whole, flipped))
    assert all(torch.equal(expected.model[name], found.model[name]) for name in expected.model)


def test_a_flipped_bit_in_both_generations_is_refused(make: Make) -> None:
    trainer = make()
    trainer.run()
    path = trainer.folder.checkpoint
    for one in (path, previous(path)):
        _flip(one, one.stat().st_size // 2)
    with pytest.raises(ArtefactError, match=r"checksum does not match; remove it"):
        make(resume=True).run(resume=True)


def test_a_checkpoint_without_a_checksum_of_its_own_is_read_unless_a_bit_is_flipped(make: Make) -> None:
    trainer = make()
    trainer.run()
    path = trainer.folder.checkpoint
    previous(path).unlink()
    torch.save(torch.load(path, weights_only=True), path)
    assert make(resume=True).run(resume=True)["epoch"] == 3
    weight = next(iter(Checkpoint.load(path, torch.device("cpu")).model.values()))
    _flip(path, path.read_bytes().index(weight.numpy().tobytes()))
    with pytest.raises(ArtefactError, match=r"checkpoint.pt"):
        make(resume=True).run(resume=True)


@pytest.mark.parametrize("name", ["checkpoint.pt", "config.json", "metrics.jsonl"])
def test_a_pipe_does_not_block(make: Make, name: str) -> None:
    trainer = make()
    trainer.run()
    previous(trainer.folder.checkpoint).unlink()
    (trainer.folder.path / name).unlink()
    os.mkfifo(trainer.folder.path / name)
    with pytest.raises(ArtefactError, match=name):
        make(resume=True).run(resume=True)


def test_a_folder_that_was_made_again_has_everything_at_the_end(make: Make) -> None:
    trainer = make()

    def remove(step: int) -> None:
        if step == trainer.task.steps + 1:
            shutil.rmtree(trainer.folder.path)
            trainer.folder.path.mkdir()

    trainer.after_step = remove
    trainer.run()
    assert len(trainer.folder.history()) == 3
    assert make(resume=True).run(resume=True)["epoch"] == 3


def test_a_run_that_goes_on_elsewhere_is_told(make: Make) -> None:
    trainer = make()
    trainer.run()
    stored = json.loads(trainer.folder.config.read_text())
    stored["environment"] |= {"threads": 77, "torch": "1.0"}
    trainer.folder.config.write_text(json.dumps(stored))
    with pytest.warns(PareWarning, match=r"another environment: threads \(there 77, .*torch \(there '1.0'"):
        make(resume=True)
