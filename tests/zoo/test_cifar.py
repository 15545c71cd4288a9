"""CIFAR from tiny files of the author's layouts, whole, damaged and hostile."""

import hashlib
import io
import os
import pickle
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from paretorch.errors import DataError
from paretorch.zoo.data import cifar, load, safe_pickle

_FILES = {
    "cifar10": (*(f"data_batch_{batch}" for batch in range(1, 6)), "test_batch"),
    "cifar100": ("train", "test"),
}
_FOLDERS = {
    ("cifar10", "binary"): "cifar-10-batches-bin",
    ("cifar10", "python"): "cifar-10-batches-py",
    ("cifar100", "binary"): "cifar-100-binary",
    ("cifar100", "python"): "cifar-100-python",
}


def _write(root: Path, name: str, form: str, count: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Tiny files of the layout; gives all pixels and labels, the test file's last."""
    folder = root / _FOLDERS[name, form]
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    classes = 10 if name == "cifar10" else 100
    all_pixels, all_labels = [], []
    for file in _FILES[name]:
        pixels = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
        labels = rng.integers(0, classes, count)
        all_pixels.append(pixels)
        all_labels.append(labels)
        if form == "binary":
            columns = [labels[:, None].astype(np.uint8), pixels]
            if name == "cifar100":
                columns.insert(0, (labels[:, None] // 5).astype(np.uint8))
            np.concatenate(columns, 1).tofile(folder / f"{file}.bin")
        else:
            key = b"labels" if name == "cifar10" else b"fine_labels"
            content = {b"data": pixels, key: labels.tolist(), b"filenames": [b"a.png"] * count}
            (folder / file).write_bytes(pickle.dumps(content, protocol=2))
    return np.concatenate(all_pixels), np.concatenate(all_labels)


@pytest.mark.parametrize("form", ["binary", "python"])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_both_layouts(tmp_path: Path, name: str, form: str) -> None:
    pixels, labels = _write(tmp_path, name, form)
    images = load(name, tmp_path)
    read = torch.cat([images.train[0], images.test[0]])
    assert np.array_equal(read.flatten(1).numpy(), pixels)
    assert read.shape[1:] == (3, 32, 32)
    assert torch.cat([images.train[1], images.test[1]]).tolist() == labels.tolist()
    assert len(images.test[1]) == 3
    assert images.classes == (10 if name == "cifar10" else 100)


def test_root_from_the_environment(tmp_path: Path, monkeypatch) -> None:
    _write(tmp_path, "cifar10", "binary")
    monkeypatch.setenv("PARETORCH_DATA", str(tmp_path))
    assert len(load("cifar10").train[1]) == 15


def test_missing_data_names_folder_and_command(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        load("cifar10", tmp_path)
    assert f"in {tmp_path};" in str(error.value)
    assert f"pare data cifar10 --download --root {tmp_path}" in str(error.value)


@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "label"])
def test_damaged_binary(tmp_path: Path, damage: str) -> None:
    _write(tmp_path, "cifar10", "binary")
    file = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes({"cut": content[:-1], "empty": b"", "label": b"\x0a" + content[1:]}[damage])
    with pytest.raises(DataError, match=r"data_batch_3.*pare data cifar10 --download"):
        load("cifar10", tmp_path)


class _Hostile:
    """A pickle that would run a command."""

    def __reduce__(self) -> object:
        return (os.system, ("touch broken-into",))


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({b"data": _Hostile()}),
        pickle.dumps(_Hostile(), protocol=0),
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"",
        b"\x80\x02}.",
        b"\x80\x02r\xff\xff\xff\xff.",  # would make the interpreter in C reserve 64 GB
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, protocol=2),
        pickle.dumps({b"data": np.zeros((2, 3072), np.float32), b"labels": [1, 2]}, protocol=2),
        pickle.dumps({b"data": np.zeros((2, 7), np.uint8), b"labels": [1, 2]}, protocol=2),
        pickle.dumps({b"data": [1, 2], b"labels": [1, 2]}, protocol=2),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [b"a", b"b"]}, protocol=2),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [[1], 2]}, protocol=2),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [[1, 2], [3, 4]]}, protocol=2),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": 5}, protocol=2),
    ],
)
def test_hostile_or_damaged_pickle(tmp_path: Path, monkeypatch, content: bytes) -> None:
    _write(tmp_path, "cifar10", "python")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_2").write_bytes(content)
    with pytest.raises(DataError, match="data_batch_2"):
        load("cifar10", tmp_path)
    assert not (tmp_path / "broken-into").exists()


def _nested(levels: int) -> bytes:
    """Dicts that each hold the one before twice: 2^levels of them, in 20 bytes a level."""
    out = b"\x80\x02}q\x00"
    for level in range(levels):
        out += b"}q" + bytes([level + 1]) + b"(K\x01h" + bytes([level]) + b"K\x02h" + bytes([level]) + b"u"
    return out + b"."


_LONG = b"X" + (1 << 16).to_bytes(4, "little") + b"a" * (1 << 16) + b"q\x00"
_ENCODE = b"c_codecs\nencode\nq\x01"
_ENDLESS = {
    "3 GB for 12 bytes": b"\x80\x05\x96" + (3 << 30).to_bytes(8, "little") + b".",
    "dicts in dicts": _nested(40),
    "a dict in itself": b"\x80\x02}q\x00K\x01h\x00s.",
    "a list in itself": b"\x80\x02]q\x00h\x00a.",
    "tuples in tuples": b"\x80\x02)" + b"q\x00h\x00h\x00\x86" * 40 + b".",
    "one string encoded often": b"\x80\x02]"
    + _LONG
    + _ENCODE
    + b"h\x01h\x00X\x06\x00\x00\x00latin1\x86R" * 9999
    + b".",
    "attributes of a function": b"\x80\x02" + _ENCODE + b"N}X\x04\x00\x00\x00markK\x01s\x86b.",
    "a number of 100,000 digits": b"\x80\x02\x8b" + (100_000).to_bytes(4, "little") + b"\x7f" * 100_000 + b".",
}


@pytest.mark.parametrize("content", _ENDLESS.values(), ids=_ENDLESS)
def test_pickle_that_grows_is_refused_in_little_memory(content: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"^it |^its |^at position|expected|exhausted"):
            safe_pickle.loads(content)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (1 << 20) + safe_pickle.GROWTH * len(content)


def test_memory_of_a_pickle_of_numbers_is_bounded() -> None:
    content = pickle.dumps(list(range(256)) * 400, protocol=2)
    tracemalloc.start()
    safe_pickle.loads(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (1 << 20) + safe_pickle.GROWTH * len(content)


@pytest.mark.parametrize("form", ["binary", "python"])
def test_pipe_among_the_files(tmp_path: Path, form: str) -> None:
    _write(tmp_path, "cifar100", form)
    file = tmp_path / _FOLDERS["cifar100", form] / ("train.bin" if form == "binary" else "train")
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DataError, match="not a file of at most"):
        load("cifar100", tmp_path)


def test_strings_for_labels_take_no_memory(tmp_path: Path) -> None:
    """numpy would make an array of 10,000 strings of 64 kB."""
    _write(tmp_path, "cifar100", "python")
    long = b"a" * (1 << 16)
    content = {b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [long] * 10_000}
    (tmp_path / "cifar-100-python" / "train").write_bytes(pickle.dumps(content, protocol=2))
    tracemalloc.start()
    with pytest.raises(DataError, match="one label for each row"):
        load("cifar100", tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 24


def test_fortran_order_pickle() -> None:
    array = np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    assert safe_pickle.loads(pickle.dumps(array, protocol=2)).tolist() == array.tolist()


def _archive(tmp_path: Path, source: Path, name: str) -> cifar.Archive:
    packed = tmp_path / "packed.tar.gz"
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(source, name)
    content = packed.read_bytes()
    return cifar.Archive(packed.as_uri(), hashlib.sha256(content).hexdigest(), len(content))


def test_download(tmp_path: Path, monkeypatch) -> None:
    pixels, _ = _write(tmp_path / "source", "cifar10", "binary")
    archive = _archive(tmp_path, tmp_path / "source" / "cifar-10-batches-bin", "cifar-10-batches-bin")
    monkeypatch.setitem(cifar._LAYOUTS, "cifar10", cifar._LAYOUTS["cifar10"]._replace(archive=archive))
    root = tmp_path / "new" / "root"
    images = load("cifar10", root, download=True)
    assert np.array_equal(images.train[0].flatten(1).numpy(), pixels[:15])
    assert [path.name for path in root.iterdir()] == ["cifar-10-batches-bin"], "nothing else is left behind"
    (tmp_path / "packed.tar.gz").unlink()
    assert len(load("cifar10", root, download=True).train[1]) == 15, "fetched once"


def test_download_repairs_a_damaged_folder(tmp_path: Path, monkeypatch) -> None:
    _write(tmp_path / "source", "cifar10", "binary")
    archive = _archive(tmp_path, tmp_path / "source" / "cifar-10-batches-bin", "cifar-10-batches-bin")
    monkeypatch.setitem(cifar._LAYOUTS, "cifar10", cifar._LAYOUTS["cifar10"]._replace(archive=archive))
    root = tmp_path / "my data"
    _write(root, "cifar10", "binary")
    (root / "cifar-10-batches-bin" / "test_batch.bin").unlink()
    with pytest.raises(DataError, match=rf"--root '{root}'$"):
        load("cifar10", root)
    assert len(load("cifar10", root, download=True).test[1]) == 3
    assert len(load("cifar10", root).test[1]) == 3


@pytest.mark.parametrize("change", [{"sha256": "0" * 64}, {"size": 5}])
def test_a_wrong_archive_is_never_opened(tmp_path: Path, monkeypatch, change: dict[str, str | int]) -> None:
    _write(tmp_path / "source", "cifar10", "binary")
    archive = _archive(tmp_path, tmp_path / "source" / "cifar-10-batches-bin", "cifar-10-batches-bin")._replace(
        **change
    )
    monkeypatch.setattr(tarfile, "open", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(DataError, match="not the file expected"):
        cifar.fetch(archive, "cifar-10-batches-bin", tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []


def test_an_archive_cannot_write_elsewhere(tmp_path: Path) -> None:
    packed = tmp_path / "packed.tar.gz"
    with tarfile.open(packed, "w:gz") as tar:
        member = tarfile.TarInfo("../../escaped")
        member.size = 4
        tar.addfile(member, io.BytesIO(b"evil"))
    content = packed.read_bytes()
    archive = cifar.Archive(packed.as_uri(), hashlib.sha256(content).hexdigest(), len(content))
    with pytest.raises(DataError, match="could not be fetched"):
        cifar.fetch(archive, "cifar-10-batches-bin", tmp_path / "a" / "root")
    assert not list(tmp_path.rglob("escaped"))


def test_unreachable_place(tmp_path: Path) -> None:
    archive = cifar.Archive((tmp_path / "nowhere.tar.gz").as_uri(), "", 1)
    with pytest.raises(DataError, match="could not be fetched"):
        cifar.fetch(archive, "cifar-10-batches-bin", tmp_path / "root")


@pytest.mark.skipif(
    not (Path(os.environ.get("PARETORCH_DATA") or "/nowhere") / "cifar-10-batches-bin").is_dir(),
    reason="no real CIFAR-10",
)
def test_the_real_set() -> None:
    images = load("cifar10")
    assert images.train[0].shape == (50000, 3, 32, 32)
    assert images.test[1].bincount().tolist() == [1000] * 10
    assert images.mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=1e-4)
    assert images.std == pytest.approx((0.2470, 0.2435, 0.2616), abs=1e-4)
