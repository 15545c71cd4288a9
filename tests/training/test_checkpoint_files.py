"""Checkpoints are whole or not there, and failing to write one is told plainly."""

import errno
import os
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from paretorch.errors import ArtefactError, PareError
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
def test_a_damaged_checkpoint_is_refused(make: Make, damage: str) -> None:
    trainer = make()
    trainer.run()
    path = trainer.folder.checkpoint
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


@pytest.mark.parametrize("text", ["3", "[1]", "{", "null"])
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
