"""Tar files of images: patterns, the index and its cache, and files that are cut or lack something."""

import gzip
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from paretorch.errors import ConfigError, DataError
from paretorch.zoo.data.on_disk import open_shards
from paretorch.zoo.data.tar_shards import find_shards, index_shard, index_shards
from tests.photos import encoded, write_shards, write_tar


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "paretorch"


def here(function: Callable[[str], Any], paths: Sequence[str]) -> list[Any]:
    return [function(path) for path in paths]


def test_patterns_expand(tmp_path: Path) -> None:
    for name in ("a-08.tar", "a-09.tar", "a-10.tar", "b-09.tar"):
        (tmp_path / name).touch()

    def found(pattern: str) -> list[str]:
        return [os.path.basename(path) for path in find_shards(f"{tmp_path}/{pattern}", "--data")]

    assert found("a-{08..10}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar"]
    assert found("{a,b}-09.tar") == ["a-09.tar", "b-09.tar"]
    assert found("{a,b}-{09..09}.tar") == ["a-09.tar", "b-09.tar"]
    assert found("a-*.tar") == ["a-08.tar", "a-09.tar", "a-10.tar"]
    assert found("b-09.tar") == ["b-09.tar"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a-{0..3}.tar", "there is no file a-1.tar"),
        ("c-*.tar", r"no file matches c-\*.tar"),
        ("a-{3..0}.tar", r"{3..0} is no range; write {0000..0009}"),
        ("a-{0..3.tar", r"the braces of a-{0..3.tar are not closed"),
        ("{a,a}-0.tar", "names a-0.tar twice"),
        ("https://place/a-0.tar", "tar files are read from this machine's file system"),
        ("pipe:curl a", "tar files are read from this machine's file system"),
    ],
)
def test_patterns_that_name_no_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-0.tar").touch()
    with pytest.raises(ConfigError, match=message):
        find_shards(pattern, "--data webdataset:x")


def test_members_are_read_by_their_place(tmp_path: Path) -> None:
    write_shards(tmp_path)
    images = open_shards(str(tmp_path), "", here)
    assert images.classes == 3
    assert images.train.labels.tolist() == [number % 3 for number in range(15)]
    read = dict(images.train.read([14, 0, 7, 3]))
    assert [read[place] for place in range(4)] == [encoded(number % 3, number) for number in (14, 0, 7, 3)]
    assert images.train.name(7) == f"{tmp_path}/train-1.tar: a/0007.png"


def test_the_index_is_kept_until_a_file_changes(tmp_path: Path, cache: Path) -> None:
    write_shards(tmp_path)
    paths = [f"{tmp_path}/train-{number}.tar" for number in range(3)]
    calls: list[str] = []

    def counted(path: str) -> Any:
        calls.append(path)
        return index_shard(path)

    def run(function: Callable[[str], Any], wanted: Sequence[str]) -> list[Any]:
        return [counted(path) for path in wanted]

    first, again = index_shards(paths, run), index_shards(paths, run)
    assert len(calls) == 3
    assert all((one == other).all() for one, other in zip(first, again, strict=True))
    os.utime(paths[1], (1, 1))
    index_shards(paths, run)
    assert len(calls) == 6
    for file in cache.glob("shards-*.npz"):
        file.write_bytes(file.read_bytes()[:-40])
    assert (index_shards(paths, run).offset == first.offset).all()
    assert len(calls) == 9, "a damaged index is made again"


def test_an_order_shuffles_files_and_images(tmp_path: Path) -> None:
    import torch

    images = open_shards(str(write_shards(tmp_path)), "", here)
    orders = [images.train.order(torch.Generator().manual_seed(seed)).tolist() for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(15))


def _members(**more: bytes) -> dict[str, bytes]:
    return {"0.png": encoded(0, 0), "0.cls": b"0", "1.png": encoded(1, 1), "1.cls": b"1"} | {
        name.replace("_", "."): content for name, content in more.items()
    }


@pytest.mark.parametrize("where", ["in a header", "in an image", "between two members", "in the last member"])
def test_a_file_that_is_cut_is_named(tmp_path: Path, where: str) -> None:
    path = write_tar(tmp_path / "train-0.tar", _members())
    data = path.read_bytes()
    second, last = data.index(b"1.png"), data.index(b"1.cls")
    cut = {
        "in a header": second + 100,
        "in an image": 900,
        "between two members": second,
        "in the last member": last + 512,
    }
    path.write_bytes(data[: cut[where]])
    with pytest.raises(DataError, match=r"train-0.tar is (cut or damaged at byte \d+|no plain tar file, or is cut)"):
        index_shard(str(path))
    path.write_bytes(data[: last + 3 * 512])  # of the zeros at the end, one block is enough
    assert index_shard(str(path)).label.tolist() == [0, 1]


def test_a_damaged_header_is_not_taken_for_the_end(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "0.tar", _members())
    data = bytearray(path.read_bytes())
    place = data.index(b"1.png")
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=f"0.tar is cut or damaged at byte {place}"):
        index_shard(str(path))


def test_compressed_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "0.tar"
    path.write_bytes(gzip.compress(write_tar(tmp_path / "plain.tar", _members()).read_bytes()))
    with pytest.raises(DataError, match=r"0.tar is no plain tar file, or is cut: .*; copy it again, uncompressed"):
        index_shard(str(path))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"2_png": b"x"}, "2 has no label: there is no 2.cls"),
        ({"2_cls": b"2"}, "2 has no image beside its label"),
        ({"1_cls": b"-1"}, "1.cls should hold a label, a whole number from 0, not '-1'"),
        ({"1_cls": b"cat"}, "not 'cat'"),
        ({"1_jpg": b"x"}, "has two images of 1"),
    ],
)
def test_images_without_labels_are_named(tmp_path: Path, more: dict[str, bytes], message: str) -> None:
    path = write_tar(tmp_path / "0.tar", _members(**more))
    with pytest.raises(DataError, match=f"0.tar.*{message}"):
        index_shard(str(path))


def test_other_members_are_passed_over(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "0.tar", _members(**{"0_json": b"{}", "README": b"words"}))
    assert index_shard(str(path)).label.tolist() == [0, 1]
    with pytest.raises(DataError, match=r"1\.tar has no images"):
        index_shard(str(write_tar(tmp_path / "1.tar", {"README": b"words"})))


def test_labels_and_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "train-0.tar", _members())
    with pytest.raises(ConfigError, match="has no tar file with 'val' in its name"):
        open_shards(str(tmp_path), "", here)
    write_tar(tmp_path / "val-0.tar", {"7.png": encoded(0, 0), "7.cls": b"2"})
    with pytest.raises(DataError, match=r"val-0.tar: 7.png has the label 2, and there are 2 classes, 0 to 1"):
        open_shards(str(tmp_path), "", here)
    assert open_shards(str(tmp_path), "", here, classes=3).classes == 3
    with pytest.raises(
        ConfigError, match=r"name the files to evaluate on: --set data.options.test=val-{0000..0009}.tar"
    ):
        open_shards(str(tmp_path / "train-0.tar"), "", here)
    with pytest.raises(ConfigError, match=r"leave data\.options\.test out"):
        open_shards(str(tmp_path), "val.tar", here)
    write_tar(tmp_path / "one.tar", {"7.png": encoded(0, 0), "7.cls": b"0"})
    with pytest.raises(DataError, match="all labels are 0; two or more classes are needed"):
        open_shards(str(tmp_path / "one.tar"), str(tmp_path / "one.tar"), here)
