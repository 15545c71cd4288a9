"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), from either layout that their author distributes, and their download.

Binary: records of one label byte (CIFAR-100: coarse, then fine) and 3,072 pixels, red plane first. Python: pickled
dicts of the same rows, which are read without running anything in them.
"""

import hashlib
import http.client
import shlex
import shutil
import stat
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paretorch.errors import DataError
from paretorch.zoo.data.images import Images, statistics
from paretorch.zoo.data.safe_pickle import loads


class Archive(NamedTuple):
    """A .tar.gz on the web, its SHA-256 and its size in bytes."""

    url: str
    sha256: str
    size: int


def fetch(archive: Archive, folder: str, root: Path) -> None:
    """Download the archive and unpack its top-level `folder` to root/folder, which is replaced when all is complete."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".download-") as scratch:
            packed = Path(scratch, "archive.tar.gz")
            _download(archive, packed)
            with tarfile.open(packed) as tar:
                tar.extractall(scratch, filter="data")  # refuses paths and links that lead outside
            unpacked = Path(scratch, folder)
            if not unpacked.is_dir():
                raise DataError(f"{archive.url} has no folder {folder}")
            shutil.rmtree(root / folder, ignore_errors=True)
            unpacked.rename(root / folder)
    except (OSError, http.client.HTTPException, tarfile.TarError) as error:
        raise DataError(f"{archive.url} could not be fetched into {root}: {error}") from error


def _download(archive: Archive, target: Path) -> None:
    digest, received = hashlib.sha256(), 0
    with urllib.request.urlopen(archive.url, timeout=60) as source, target.open("wb") as sink:
        while block := source.read(2**20):
            received += len(block)
            if received > archive.size:
                break
            digest.update(block)
            sink.write(block)
    if received != archive.size or digest.hexdigest() != archive.sha256:
        raise DataError(f"{archive.url} is not the file expected (its SHA-256 differs); please try again")


_PIXELS = 3 * 32 * 32
MOST_BYTES = 1 << 29
"""Of one file; the largest that its author distributes has 156 million."""


class _Layout(NamedTuple):
    """The files of one set: the folders of both layouts, the names of the files, and how labels are stored."""

    classes: int
    binary: str
    python: str
    train: tuple[str, ...]
    test: str
    label_bytes: int  # the last of them is the label
    label_key: bytes
    archive: Archive


_LAYOUTS = {
    "cifar10": _Layout(
        10,
        "cifar-10-batches-bin",
        "cifar-10-batches-py",
        tuple(f"data_batch_{batch}" for batch in range(1, 6)),
        "test_batch",
        1,
        b"labels",
        Archive(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            170052171,
        ),
    ),
    "cifar100": _Layout(
        100,
        "cifar-100-binary",
        "cifar-100-python",
        ("train",),
        "test",
        2,
        b"fine_labels",
        Archive(
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            168513733,
        ),
    ),
}


def load(name: str, root: Path, download: bool = False) -> Images:
    """Read "cifar10" or "cifar100" from the author's folder under `root`.

    Args:
        name: of the set.
        root: the folder that holds the author's folder.
        download: fetch the set if it is missing or damaged.
    """
    layout = _LAYOUTS[name]
    try:
        return _read(name, layout, root)
    except DataError as error:
        if not download:
            repair = f"pare data {name} --download --root {shlex.quote(str(root))}"
            raise DataError(f"{error}; run: {repair}") from error
    fetch(layout.archive, layout.binary, root)
    return _read(name, layout, root)


def _read(name: str, layout: _Layout, root: Path) -> Images:
    for folder, read, suffix in ((layout.binary, _read_binary, ".bin"), (layout.python, _read_python, "")):
        if not (root / folder).is_dir():
            continue
        try:
            parts = [read(root / folder / (file + suffix), layout) for file in (*layout.train, layout.test)]
        except (OSError, ValueError) as error:
            raise DataError(f"{root / folder} is incomplete or damaged ({error})") from error
        train = (torch.cat([part[0] for part in parts[:-1]]), torch.cat([part[1] for part in parts[:-1]]))
        return Images(name, train, parts[-1], layout.classes, *statistics(train[0]))
    raise DataError(f"There is no {layout.binary} or {layout.python} in {root}")


def _read_binary(path: Path, layout: _Layout) -> tuple[Tensor, Tensor]:
    data = np.frombuffer(_content(path), np.uint8)
    record = layout.label_bytes + _PIXELS
    if len(data) == 0 or len(data) % record:
        raise ValueError(f"{path.name} has {len(data)} bytes, which is no multiple of {record}")
    rows = data.reshape(-1, record)
    return _checked(path, layout, rows[:, layout.label_bytes :], rows[:, layout.label_bytes - 1].astype(np.int64))


def _read_python(path: Path, layout: _Layout) -> tuple[Tensor, Tensor]:
    try:
        content = loads(_content(path))
        pixels, labels = content[b"data"], content[layout.label_key]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name} is not a CIFAR file: {error}") from error
    # Checked before numpy sees the list: it would make all strings of one as long as the longest.
    fits = isinstance(labels, list) and all(type(label) is int for label in labels)
    if not fits or not isinstance(pixels, np.ndarray) or pixels.shape != (len(labels), _PIXELS):
        raise ValueError(f"{path.name} does not hold one label for each row of {_PIXELS} pixels")
    return _checked(path, layout, pixels, np.array(labels, np.int64))


def _content(path: Path) -> bytes:
    """The bytes of a file; a pipe, which would block, and a file larger than any of CIFAR raise."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
        raise ValueError(f"{path.name} is not a file of at most {MOST_BYTES:,} bytes")
    return path.read_bytes()


def _checked(path: Path, layout: _Layout, pixels: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
    if len(labels) == 0 or labels.min() < 0 or labels.max() >= layout.classes:
        raise ValueError(f"{path.name} has no labels, or labels outside 0..{layout.classes - 1}")
    return torch.from_numpy(pixels.reshape(-1, 3, 32, 32).copy()), torch.from_numpy(labels)
