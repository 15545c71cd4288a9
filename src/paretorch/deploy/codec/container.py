"""The file around the blob: one safetensors file with one tensor of bytes, written all or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from paretorch.errors import ArtefactError, PareError
from paretorch.support.files import replacing

VERSION = 3  # 2: declarations first; 3: steps and offsets of groups, classes of blocks
_KEY = "pare"


def pack(blob: bytes) -> bytes:
    """Return the file's bytes: one tensor and one entry of metadata (a table of all tensors takes 10 kB for ResNet-20)."""
    from safetensors.numpy import save

    return save({_KEY: np.frombuffer(blob, dtype=np.uint8)}, metadata={_KEY: str(VERSION)})


def write_file(path: Path, data: bytes) -> None:
    """Replace the file atomically: a reader sees the old one or the new one."""
    with beside(path) as temporary, open(temporary, "wb") as file:
        file.write(data)


@contextlib.contextmanager
def beside(path: Path, suffix: str = "") -> Iterator[str]:
    """As `replacing`, with errors of one sentence; refuses to replace a pipe or a device."""
    held = contextlib.ExitStack()
    try:
        target = os.path.realpath(path)
        if os.path.exists(target) and not (os.path.isfile(target) or os.path.isdir(target)):
            raise ArtefactError(
                f"{path} is not a file but a pipe or a device, which a file would replace: give a name of its own"
            )
        temporary = held.enter_context(replacing(path, suffix))
    except (OSError, ValueError) as error:
        raise ArtefactError(f"Cannot write in {path.parent}: {_reason(error)}") from error
    try:
        with held:
            yield temporary
    except PareError:
        raise
    except (OSError, ValueError) as error:
        raise ArtefactError(f"Cannot write {path}: {_reason(error)}; the file there, if any, is unchanged") from error


def read_file(path: Path, most: int | None = None) -> tuple[memoryview, int]:
    """Return the blob and its format version, this one or an older one; raise if the file has more than `most` bytes."""
    from safetensors import SafetensorError, safe_open

    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ArtefactError(f"{path} is a folder: give the file in it, such as {path / 'model.pare'}")
        if not stat.S_ISREG(status.st_mode):
            raise ArtefactError(f"{path} is not a file but a pipe or a device; copy what it gives into a file")
        if most is not None and status.st_size > most:
            raise ArtefactError(f"{path} has {status.st_size:,} bytes, more than a file for this module can have")
        with safe_open(str(path), framework="np") as file:
            version = (file.metadata() or {}).get(_KEY)
            if version is None or list(file.keys()) != [_KEY]:
                raise ArtefactError(f"{path} is a safetensors file, but not an artefact of paretorch")
            if version not in {str(known) for known in range(1, VERSION + 1)}:
                raise ArtefactError(f"{path} has format version {version[:20]!r}; this paretorch reads up to {VERSION}")
            if file.get_slice(_KEY).get_dtype() != "U8":
                raise ArtefactError(f"{path} does not hold bytes")
        return _blob(path), int(version)
    except FileNotFoundError as error:
        raise ArtefactError(f"There is no file {path}") from error
    except MemoryError as error:
        raise ArtefactError(f"{path} is larger than the memory that is free") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise ArtefactError(f"{path} is not a readable artefact: {_reason(error)}") from error


def _blob(path: Path) -> memoryview:
    """Read what follows the header, the bytes of the only tensor: safetensors would map the file and copy it."""
    with path.open("rb") as file:
        file.seek(int.from_bytes(file.read(8), "little"), os.SEEK_CUR)
        return np.fromfile(file, dtype=np.uint8).data


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
