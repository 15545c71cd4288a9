"""Files of tensors with a checksum, written atomically, in two generations.

A file is what `torch.save` writes, followed by a trailer of 48 bytes: a mark and the SHA-256 of everything before it.
`torch.load` can read such a file, but does not notice flipped bits: it ignores the checksums in the archive. Files of version
0.1.0 have no trailer; for these the checksums in the archive are compared. The previous generation is in the same folder,
under the name that `previous` returns.
"""

import contextlib
import hashlib
import io
import os
import pickletools
import secrets
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from paretorch.errors import ArtefactError, warn
from paretorch.support.files import open_regular, replacing

_MARK = b"\nparetorch-sum1\n"
_TRAILER = len(_MARK) + 32
_CHUNK = 1 << 20
_NAMES = ("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter", "collections OrderedDict", "torch Size")
"""What files of ours name, besides the storages of tensors."""
_MOST_VALUES = 10_000_000
_ZIP_END = 22  # bytes of the last record of an archive


class DamagedError(ArtefactError):
    """A file that differs from what was written. The message gives no advice; the caller adds it."""


def previous(path: Path) -> Path:
    """Return the name of the previous generation."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def exists(path: Path) -> bool:
    """Return whether either generation exists."""
    return path.exists() or previous(path).exists()


def remove(path: Path) -> None:
    """Remove both generations, the older one first, so that a kill in between leaves the newer one."""
    previous(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def write_tensors(path: Path, content: Any, *, generations: int = 1) -> None:
    """Replace a file of tensors and plain values. With two generations, the existing file becomes the previous one."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with replacing(path) as temporary:
        with open(temporary, "wb") as file:
            file.write(buffer.getbuffer())
            file.write(_MARK + hashlib.sha256(buffer.getbuffer()).digest())
        if generations > 1 and path.is_file() and not path.is_symlink():
            _keep_previous(path)


def read_tensors(path: Path, device: torch.device | str = "cpu") -> Any:
    """Read one file without running code from it; raise `DamagedError` if it differs from what was written."""
    try:
        with open_regular(path) as file:
            verify(file, path)
            _require_plain(file, path)
            file.seek(0)
            content = torch.load(file, map_location=device, weights_only=True)
            _require_small(content, path)
            return content
    except (DamagedError, MemoryError):
        raise
    except Exception as error:  # a damaged file may make the unpickler raise anything
        raise DamagedError(f"{path} is not a readable checkpoint") from error


def read_newest(path: Path, device: torch.device | str = "cpu") -> Any:
    """Read the newest undamaged generation. If that is the previous one, warn and put it in place of the newer one."""
    try:
        return read_tensors(path, device)
    except DamagedError as error:
        older = previous(path)
        try:
            content = read_tensors(older, device)
        except DamagedError:
            raise error from None
    with contextlib.suppress(OSError):  # else the next write would keep the damaged file in place of this one
        os.replace(older, path)
    warn(f"{path} is missing or damaged; continuing from the previous checkpoint")
    return content


def verify(file: BinaryIO, path: Path) -> bool:
    """Compare the checksum of an open file and return whether it has a trailer; raise `DamagedError` if it does not match.

    The archive's entries must be uncompressed and add up to no more than the file: compressed ones could be far larger.
    """
    size = file.seek(0, os.SEEK_END)
    if size < _TRAILER:
        raise DamagedError(f"{path} is not a readable checkpoint")
    file.seek(size - _TRAILER)
    trailer = file.read(_TRAILER)
    marked = trailer.startswith(_MARK)
    if marked and _digest(file, size - _TRAILER) != trailer[len(_MARK) :]:
        raise DamagedError(f"{path} is damaged: its checksum does not match")
    if not marked:  # or a flipped bit in the mark itself would pass
        file.seek(size - _ZIP_END)
        if not file.read().startswith(b"PK\5\6"):
            raise DamagedError(f"{path} is damaged: its checksum is not readable, or something follows the archive")
    file.seek(0)
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
            if not stored or sum(entry.file_size for entry in entries) > size:
                raise DamagedError(f"{path} is not a readable checkpoint")
            broken = None if marked else archive.testzip()
    except (zipfile.BadZipFile, ValueError, RuntimeError, NotImplementedError, EOFError) as error:
        raise DamagedError(f"{path} is not a readable checkpoint") from error
    if broken is not None:
        raise DamagedError(f"{path} is damaged: the checksum of {broken} does not match")
    return marked


def _require_plain(file: BinaryIO, path: Path) -> None:
    """Refuse a pickle that names anything but tensors: what else torch allows in one can take any memory."""
    file.seek(0)
    with zipfile.ZipFile(file) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith("/data.pkl"))
        program = archive.read(name)
    strings: list[str] = []
    for opcode, argument, _ in pickletools.genops(program):
        if opcode.name == "GLOBAL":
            named = str(argument)
        elif opcode.name == "STACK_GLOBAL":
            named = " ".join(strings[-2:])
        else:
            if isinstance(argument, str):
                strings.append(argument)
            continue
        if named not in _NAMES and not (named.startswith("torch ") and named.endswith("Storage")):
            raise DamagedError(f"{path} is not a checkpoint of ours: it names {named[:60]!r}")


def _require_small(content: Any, path: Path) -> None:
    """Refuse containers that hold each other so often that nobody who walks through them would come to an end."""
    left, waiting = _MOST_VALUES, [content]
    while waiting:
        one = waiting.pop()
        inner = list(one.values()) if isinstance(one, dict) else one if isinstance(one, list | tuple) else ()
        left -= 1 + len(inner)
        if left < 0:
            raise DamagedError(f"{path} is not a checkpoint of ours: it holds more than {_MOST_VALUES:,} values")
        waiting.extend(inner)


def _digest(file: BinaryIO, length: int) -> bytes:
    file.seek(0)
    digest = hashlib.sha256()
    while length > 0:
        data = file.read(min(_CHUNK, length))
        if not data:
            break
        digest.update(data)
        length -= len(data)
    return digest.digest()


def _keep_previous(path: Path) -> None:
    """Link the file under the name of the previous generation, so that one of the names always has an undamaged file."""
    older = previous(path)
    link = older.with_name(f".pare.{secrets.token_hex(6)}")
    try:
        os.link(path, link)
    except OSError:  # a file system without hard links: for a moment only the previous one exists
        os.replace(path, older)
        return
    try:
        os.replace(link, older)
    finally:
        link.unlink(missing_ok=True)  # still there if both names already are one file
