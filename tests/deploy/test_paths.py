"""Paths: any regular file of any name, written as a whole or not at all; anything else raises at once."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest
import torch
from torch import nn

import paretorch as pt
from paretorch.deploy import export_onnx, load, save
from paretorch.deploy.codec.container import VERSION, read_file
from paretorch.errors import ArtefactError
from paretorch.report import report


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def test_a_pipe_raises_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for use in (lambda: load(pipe, into=net()), lambda: load(pipe), lambda: report(pipe)):
        with pytest.raises(ArtefactError, match="not a file but a pipe or a device"):
            use()
    with pytest.raises(ArtefactError, match="a pipe or a device"):
        load(os.devnull, into=net())


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        for use in (
            lambda p: save(net(), p),
            lambda p: export_onnx(net(), torch.ones(2, 3), p),
            pt.report(net()).to_html,
        ):
            with pytest.raises(ArtefactError, match="not a file but a pipe or a device"):
                use(path)
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("name", ["a" * 400, "a\0b", "a\ud800b"])
def test_names_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="Cannot write"):
        save(net(), tmp_path / name)
    with pytest.raises(ArtefactError, match=r"not a readable artefact|no file"):
        load(tmp_path / name, into=net())
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a" * 255, "ä" * 127, "a b\n.pare", os.fsdecode(b"\xff.pare")])
def test_names_that_a_file_can_have(name: str, tmp_path: Path) -> None:
    save(net(), tmp_path / name)
    assert torch.equal(load(tmp_path / name, into=nn.Linear(3, 2)).weight, net().weight)
    assert os.listdir(tmp_path) == [name]


def test_a_link_is_followed(tmp_path: Path) -> None:
    save(net(), tmp_path / "x.pare")
    (tmp_path / "link").symlink_to(tmp_path / "x.pare")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert torch.equal(load(tmp_path / "link", into=nn.Linear(3, 2)).weight, net().weight)
    with pytest.raises(ArtefactError):
        load(tmp_path / "loop", into=net())


def _sparse(path: Path, length: int) -> None:
    """A file that says it is so long and takes no room on disk."""
    entry = {"dtype": "U8", "shape": [length], "data_offsets": [0, length]}
    header = json.dumps({"__metadata__": {"pare": "2"}, "pare": entry}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + length)


def test_a_file_much_larger_than_the_module_is_not_read(tmp_path: Path) -> None:
    _sparse(tmp_path / "x.pare", 1 << 36)
    with pytest.raises(ArtefactError, match="more than a file for this module can have"):
        load(tmp_path / "x.pare", into=net())


def test_a_file_larger_than_memory_raises(tmp_path: Path) -> None:
    _sparse(tmp_path / "x.pare", 1 << 34)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 33, before[1]))
    try:
        with pytest.raises(ArtefactError, match="larger than the memory that is free"):
            read_file(tmp_path / "x.pare")
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def test_bytes_are_those_behind_the_header(tmp_path: Path) -> None:
    save(net(), tmp_path / "x.pare")
    whole = (tmp_path / "x.pare").read_bytes()
    blob, version = read_file(tmp_path / "x.pare")
    assert version == VERSION
    assert bytes(blob) == whole[8 + int.from_bytes(whole[:8], "little") :]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "latest.pare"
    link.symlink_to(tmp_path / "there" / "first.pare")
    for value in (1.0, 2.0):  # the target is not there yet, then it is
        model = nn.Linear(2, 2)
        nn.init.constant_(model.weight, value)
        save(model, link)
        assert link.is_symlink()
        assert float(load(tmp_path / "there" / "first.pare", into=nn.Linear(2, 2)).weight.detach()[0, 0]) == value
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["first.pare"]
