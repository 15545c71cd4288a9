"""Hostile files: each raises one clear ArtefactError and has no other effect."""

from __future__ import annotations

import errno
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save as pack_tensors
from torch import nn

from paretorch.deploy import load, save
from paretorch.deploy.artefact import open_artefact
from paretorch.deploy.codec.container import pack
from paretorch.errors import ArtefactError
from paretorch.report import report

from .hostile import MixedNow, as_block, join, mutations, read_block, reseal, split, survive, valid_blob

_WIDE = {"kind": "keep_channels", "keep": "7" + "f" * (2**18 - 1), "size": 2**20, "out": ["norm"], "in": []}
"""A few bytes that would take ten seconds to check channel by channel."""


def refuse(data: bytes, folder: Path, match: str, into: nn.Module | None = None) -> None:
    path = folder / "x.pare"
    path.write_bytes(data)
    with pytest.raises(ArtefactError, match=match):
        load(path, into=MixedNow() if into is None else into)


def forge(index: bytes, rest: bytes, **changes: Any) -> bytes:
    """A valid blob's index with another JSON head, sealed again."""
    text, tables = read_block(index)
    head = json.loads(text) | changes
    text = json.dumps({key: value for key, value in head.items() if value is not None}).encode()
    return join(as_block(text) + tables, rest)


def test_mutated_files_are_refused_or_harmless(tmp_path: Path) -> None:
    refused, passed = survive(mutations(400), tmp_path)
    assert refused + passed == 400
    assert refused > 300


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=200))
def test_any_bytes_raise(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    for file in (data, pack(data), pack(reseal(data)), pack(join(data, b""))):
        refuse(file, folder, ".")


def test_a_cut_file_raises(tmp_path: Path) -> None:
    whole = pack(valid_blob())
    for length in range(0, len(whole), 37):
        refuse(whole[:length], tmp_path, "not a readable artefact|checksum")


def test_a_flipped_bit_raises(tmp_path: Path) -> None:
    blob = bytearray(valid_blob())
    for position in range(0, len(blob), 101):
        blob[position] ^= 4
        refuse(pack(bytes(blob)), tmp_path, "checksum")
        blob[position] ^= 4


def test_what_is_not_an_artefact_is_named(tmp_path: Path) -> None:
    blob = np.frombuffer(valid_blob(), dtype=np.uint8)
    refuse(pack_tensors({"pare": blob}), tmp_path, "not an artefact")
    refuse(pack_tensors({"pare": blob, "x": blob}, metadata={"pare": "1"}), tmp_path, "not an artefact")
    refuse(pack_tensors({"pare": blob}, metadata={"pare": "4"}), tmp_path, "version '4'")
    refuse(pack_tensors({"pare": blob}, metadata={"pare": "1"}), tmp_path, "checksum")
    refuse(pack_tensors({"pare": blob}, metadata={"pare": "../x"}), tmp_path, "version")
    refuse(pack_tensors({"pare": blob.astype(np.int32)}, metadata={"pare": "1"}), tmp_path, "bytes")
    with pytest.raises(ArtefactError, match="no file"):
        load(tmp_path / "missing.pare", into=MixedNow())
    with pytest.raises(ArtefactError):
        load(tmp_path, into=MixedNow())


def test_a_forged_head_raises(tmp_path: Path) -> None:
    index, rest = split(valid_blob())
    names = list(MixedNow().state_dict())
    for changes, match in [
        ({"names": [*names[:-1], names[0]]}, "twice"),
        ({"names": names[:-1]}, "lacks norm.num_batches_tracked"),
        ({"names": [*names, "more\nlines"]}, "too many"),
        ({"names": None}, "names"),
        ({"names": [1, 2]}, "names"),
        ({"edits": [{"kind": "keep_everything"}]}, "Unknown structural edit"),
        ({"edits": [{"kind": "scale", "weight": "nobody", "exponent": 0}]}, "scales 'nobody', which"),
        ({"edits": [{"kind": "scale", "weight": "rows", "exponent": 10**30}]}, "exponent"),
        ({"edits": [{"kind": "keep_channels", "keep": "f" * 99, "size": 8, "out": [], "in": []}]}, "damaged"),
        ({"edits": [{"kind": "keep_channels", "keep": "zz", "size": 8, "out": [], "in": []}]}, "damaged"),
        ({"edits": [{"kind": "keep_channels", "keep": "1", "size": 10**9, "out": [], "in": []}]}, "damaged"),
        ({"edits": [{"kind": "keep_channels", "keep": "1", "size": 8, "out": [{}], "in": []}]}, "damaged"),
        ({"edits": [{"kind": "keep_channels", "keep": "f", "size": 8, "out": [], "in": []}]}, "damaged"),
        ({"edits": [{"kind": "keep_channels", "keep": "ff", "size": 8, "out": ["norm"] * 9999, "in": []}]}, "damaged"),
        ({"edits": [_WIDE]}, "more than any layer"),
        ({"edits": [{"kind": "keep_channels", "keep": "0", "size": 8, "out": ["x"], "in": []}]}, "0 of 8 channels"),
        ({"edits": [{"kind": "keep_channels", "keep": "f", "size": 8, "out": ["nobody"], "in": []}]}, "does not have"),
        ({"summary": 3}, "head"),
    ]:
        refuse(pack(forge(index, rest, **changes)), tmp_path, match)


def test_errors_are_short_whatever_a_file_is_full_of(tmp_path: Path) -> None:
    index, rest = split(valid_blob())
    long = "a" * 500_000
    for edit in (
        {"kind": "keep_channels", "keep": "f", "size": 8, "out": [long], "in": []},
        {"kind": "quantize_activation", "modules": [long], "grid": [1]},
        {"kind": "share", "bank": "shared_0", "count": 1, "weights": [long], "uses": [[0]]},
        {"kind": "scale", "weight": long, "exponent": 1},
        {"kind": long},
    ):
        (tmp_path / "x.pare").write_bytes(pack(forge(index, rest, edits=[edit])))
        with pytest.raises(ArtefactError) as told:
            load(tmp_path / "x.pare", into=MixedNow())
        assert len(str(told.value)) < 500


def test_a_forged_network_is_not_built(tmp_path: Path) -> None:
    index, rest = split(valid_blob())
    for zoo, match in [
        (["wrn-28-1000000", {}], "lacks|too large|cannot be built"),
        (["wrn-60004-1", {}], "more tensors"),
        (["wrn-99999999999-1", {}], "of an impossible size"),
        (["resnet20", {"classes": 2**40}], "of an impossible size"),
        (["resnet20", {"classes": float("inf")}], "not valid JSON"),
        (["os.system", {}], "cannot be built"),
        (["resnet20", {"__class__": 1}], "cannot be built"),
        ([3, {}], "zoo entry"),
        ("resnet20", "zoo entry"),
    ]:
        path = tmp_path / "x.pare"
        path.write_bytes(pack(forge(index, rest, zoo=zoo)))
        with pytest.raises(ArtefactError, match=match):
            load(path)


def test_terabytes_are_not_allocated(tmp_path: Path) -> None:
    """A few bytes that declare a tensor of 2**50 numbers, once with a module and once without."""
    for shape in ([2**50], [2**31, 2**31, 2**31], [0, 2**62]):
        head = json.dumps({"names": ["w"]}).encode()
        sizes = b"".join(_varint(length) for length in shape)
        index = _varint(len(head)) + head + b"\x01" + _varint(len(shape)) + sizes + b"\x00" + b"\x00"
        data = pack(join(index, bytes(4)))
        tracemalloc.start()
        refuse(data, tmp_path, "in the file and", into=_one_weight())
        with pytest.raises(ArtefactError, match="larger than"):
            open_artefact(tmp_path / "x.pare")
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
        tracemalloc.stop()


def test_tables_for_slices_of_nothing_are_not_allocated(tmp_path: Path) -> None:
    """A tensor of shape (0, 2**39) has no elements, and 2**39 columns that could be sorted into classes."""
    head = json.dumps({"names": ["w"]}).encode()
    declared = b"\x01\x02" + _varint(0) + _varint(2**39)
    coded = b"\x02\x00" + b"\x00\x00\x02" + b"\x02" + b"\x01\x00" + b"\x01" * 8  # a grid, its classes by column
    module = nn.Module()
    module.register_buffer("w", torch.empty(0, 2**39))
    refuse(pack(join(_varint(len(head)) + head + declared + coded, bytes(4))), tmp_path, "without elements", module)
    with pytest.raises(ArtefactError, match="without elements"):
        open_artefact(tmp_path / "x.pare")


def test_no_class_for_each_of_millions_of_slices(tmp_path: Path) -> None:
    """A number a slice would take eight times the memory of a tall tensor of bytes."""
    head = json.dumps({"names": ["w"]}).encode()
    declared = b"\x09\x02" + _varint(1 << 22) + _varint(1)
    coded = b"\x02\x00" + b"\x00\x00\x02" + b"\x01" + b"\x01\x00" + b"\x01\x00\x01\x00"  # classes by row
    module = nn.Module()
    module.register_buffer("w", torch.empty(1 << 22, 1, dtype=torch.uint8))
    refuse(pack(join(_varint(len(head)) + head + declared + coded, bytes(4))), tmp_path, "too small slices", module)


@pytest.mark.parametrize(
    "changes",
    [
        {"edits": [1]},
        {"edits": [{"kind": "share", "bank": "shared_0", "count": 1, "weights": ["w"], "uses": [[7]]}]},
        {"summary": {"accuracy": float("inf")}},
        {"summary": {"loss": float("nan")}},
    ],
)
def test_a_report_checks_a_head_as_load_does(changes: dict[str, Any], tmp_path: Path) -> None:
    index, rest = split(valid_blob())
    path = tmp_path / "x.pare"
    path.write_bytes(pack(forge(index, rest, **changes)))
    with pytest.raises(ArtefactError):
        report(path)


def test_names_are_escaped_for_the_terminal(tmp_path: Path) -> None:
    """A name may hold what moves a cursor, or half a character, which no terminal encodes."""
    path = tmp_path / "x.pare"
    save({"a\x1b[2Jb": torch.ones(2, 2), "\ud800": torch.ones(2, 2)}, path)  # type: ignore[arg-type]
    told = str(report(path))
    assert "\x1b" not in told
    assert r"'a\x1b[2Jb'" in told
    assert told.encode()


def test_a_report_on_a_few_bytes_takes_a_few_times_what_they_declare(tmp_path: Path) -> None:
    """150 bytes may declare 64 MiB of one value; counting them must not take twenty times that."""
    values = torch.zeros(1 << 24, dtype=torch.uint8)
    values[5] = 1
    module = nn.Module()
    module.register_buffer("w", values.view(1024, -1))
    save(module, tmp_path / "x.pare")
    tracemalloc.start()
    assert report(tmp_path / "x.pare").sizes.total < 200
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 9 * values.nbytes


def test_an_index_that_inflates_without_end_is_refused(tmp_path: Path) -> None:
    tracemalloc.start()
    refuse(pack(join(bytes(1 << 26), bytes(4))), tmp_path, "larger than any index", into=_one_weight())
    tracemalloc.stop()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _one_weight() -> nn.Module:
    module = nn.Module()
    module.w = nn.Parameter(torch.zeros(3))
    return module


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.pare"
    save(_one_weight(), path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtefactError, match="No space left"):
        save(MixedNow(), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ArtefactError, match="Cannot write in"):
        save(MixedNow(), tmp_path / "nowhere" / "net.pare")


def test_reading_a_file_without_a_module(tmp_path: Path) -> None:
    save(MixedNow(), tmp_path / "x.pare", summary={"accuracy": 0.5})
    state, head = open_artefact(tmp_path / "x.pare")
    assert isinstance(state, dict)
    assert head["summary"] == {"accuracy": 0.5}
    assert all(torch.equal(state[name], tensor) for name, tensor in MixedNow().state_dict().items())
