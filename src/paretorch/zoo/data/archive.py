"""Download of an archive: checked before it is opened, unpacked into its own folder only, complete or not at all."""

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
