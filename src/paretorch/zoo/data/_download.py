"""Fetching an archive: verified before it is opened, unpacked only where it belongs, never half there."""

import hashlib
import http.client
import shutil
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import NamedTuple

from paretorch.errors import DataError


class Archive(NamedTuple):
    """A .tar.gz on the web, with its SHA-256 and its size in bytes."""

    url: str
    sha256: str
    size: int


def fetch(archive: Archive, folder: str, root: Path) -> None:
    """Put the archive's top-level `folder` at root/folder, replacing what was there once the new one is complete."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".download-") as scratch:
            packed = Path(scratch, "archive.tar.gz")
            _copy(archive, packed)
            with tarfile.open(packed) as tar:
                tar.extractall(scratch, filter="data")  # refuses paths and links that lead outside
            unpacked = Path(scratch, folder)
            if not unpacked.is_dir():
                raise DataError(f"{archive.url} holds no folder {folder}.")
            shutil.rmtree(root / folder, ignore_errors=True)
            unpacked.rename(root / folder)
    except (OSError, http.client.HTTPException, tarfile.TarError) as error:
        raise DataError(f"{archive.url} could not be fetched into {root}: {error}.") from error


def _copy(archive: Archive, target: Path) -> None:
    digest, received = hashlib.sha256(), 0
    with urllib.request.urlopen(archive.url, timeout=60) as source, target.open("wb") as sink:
        while block := source.read(2**20):
            received += len(block)
            if received > archive.size:
                break
            digest.update(block)
            sink.write(block)
    if received != archive.size or digest.hexdigest() != archive.sha256:
        raise DataError(f"What {archive.url} sent is not the file expected (its SHA-256 differs); please try again.")
