"""The file around the blob: one safetensors file with one tensor of bytes, written all or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import numpy as np

from paretorch.errors import ArtefactError

VERSION = 2
_KEY = "pare"


def pack(blob: bytes) -> bytes:
    """The file's bytes. One tensor and one entry of metadata: a table of all tensors costs 10 kB in ResNet-20."""
    from safetensors.numpy import save

    return save({_KEY: np.frombuffer(blob, dtype=np.uint8)}, metadata={_KEY: str(VERSION)})


def write_file(path: Path, data: bytes) -> None:
    """Write beside the target, flush to disk, rename: a reader sees the old file or the new one."""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise ArtefactError(f"cannot write in {path.parent}: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp's own mode would hide the file from other users
        os.replace(temporary, path)
    except OSError as error:
        raise ArtefactError(f"cannot write {path}: {error.strerror}; the file there, if any, is unchanged") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def read_file(path: Path) -> tuple[memoryview, int]:
    """The blob and its format version, this one or an older one."""
    from safetensors import SafetensorError, safe_open

    if path.is_dir():
        raise ArtefactError(f"{path} is a folder: give the file in it, such as {path / 'model.pare'}")
    try:
        with safe_open(str(path), framework="np") as file:
            version = (file.metadata() or {}).get(_KEY)
            if version is None or list(file.keys()) != [_KEY]:
                raise ArtefactError(f"{path} is a safetensors file, but not an artefact of paretorch")
            if version not in {str(known) for known in range(1, VERSION + 1)}:
                raise ArtefactError(f"{path} has format version {version[:20]!r}; this paretorch reads up to {VERSION}")
            if file.get_slice(_KEY).get_dtype() != "U8":
                raise ArtefactError(f"{path} does not hold bytes")
            return memoryview(file.get_tensor(_KEY)), int(version)
    except FileNotFoundError as error:
        raise ArtefactError(f"there is no file {path}") from error
    except (SafetensorError, OSError) as error:
        raise ArtefactError(f"{path} is not a readable artefact: {error}") from error
