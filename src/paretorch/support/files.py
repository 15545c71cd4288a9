"""Files that are replaced as a whole: after a crash, a kill or a full disk, the old or the new version is there."""

import contextlib
import errno
import json
import os
import secrets
import stat
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from paretorch.errors import ArtefactError, PareError

_PREFIX = ".pare."  # of temporary files
_MAX_AGE = 3600.0  # seconds: no file takes as long to write
_MAX_TEXT = 1 << 30  # bytes of a text file


@contextlib.contextmanager
def replacing(path: Path, suffix: str = "") -> Iterator[str]:
    """Yield the name of a temporary file to write; it replaces the target on exit, and is removed after an exception.

    The file is flushed to the disk and renamed over the target, and the folder is flushed: a crash, a kill or a full disk at
    any moment leaves the previous file unchanged. Every writer has a temporary file of its own. If the target is a link, the
    file that it points to is replaced. An existing target keeps its mode.
    """
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    temporary, descriptor = _create(folder, suffix)
    try:
        yield temporary
        _sync(temporary, os.O_RDWR)
        with contextlib.suppress(FileNotFoundError):
            os.chmod(temporary, stat.S_IMODE(os.stat(target).st_mode))
        if os.name == "nt":  # Windows renames no open file, and has no lock to keep
            os.close(descriptor)
            descriptor = -1
        os.replace(temporary, target)
        with contextlib.suppress(OSError):  # the file is in place; some systems cannot flush folders
            _sync(folder, os.O_RDONLY)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if descriptor >= 0:
            os.close(descriptor)  # which releases the lock


def write_file(path: Path, data: bytes) -> None:
    """Replace a file with these bytes: a reader sees the old file or the new one."""
    with replacing_checked(path) as temporary, open(temporary, "wb") as file:
        file.write(data)


@contextlib.contextmanager
def replacing_checked(path: Path, suffix: str = "") -> Iterator[str]:
    """As `replacing`, for files that a user names: errors are one sentence, and a pipe or a device is not replaced."""
    stack = contextlib.ExitStack()
    try:
        target = os.path.realpath(path)
        if os.path.exists(target) and not (os.path.isfile(target) or os.path.isdir(target)):
            raise ArtefactError(f"{path} is not a file but a pipe or a device: give another name")
        temporary = stack.enter_context(replacing(path, suffix))
    except (OSError, ValueError) as error:
        raise ArtefactError(f"Cannot write in {path.parent}: {error_reason(error)}") from error
    try:
        with stack:
            yield temporary
    except PareError:
        raise
    except (OSError, ValueError) as error:
        raise ArtefactError(
            f"Cannot write {path}: {error_reason(error)}; the file there, if any, is unchanged"
        ) from error


def error_reason(error: Exception) -> str:
    """Return what an error says, without the number and the file name of an OSError."""
    return getattr(error, "strerror", None) or str(error)


def sweep(folder: Path) -> None:
    """Remove the temporary files that killed writers have left in a folder.

    A writer holds a lock on its file, which the system releases when the writer ends. On file systems without locks, files
    older than an hour are removed.
    """
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))
            try:
                locked = _lock(descriptor)
                old = time.time() - os.fstat(descriptor).st_mtime > _MAX_AGE
                if locked or (locked is None and old):
                    path.unlink()
            finally:
                os.close(descriptor)


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; raise OSError if it is not a regular file, such as a FIFO, which would block."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return open(descriptor, "rb")


def read_text(path: Path) -> str:
    """Return the text of a regular file of at most 1 GiB; raise OSError, or ValueError if it is not UTF-8 or too long."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > _MAX_TEXT:
            raise ValueError(f"{path} is longer than {_MAX_TEXT} bytes")
        return file.read().decode("utf-8")


def parse_json(text: str) -> Any:
    """Return the value of a JSON text; raise ValueError, also if it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table of a TOML text; raise ValueError, also if it is nested too deeply."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_json(path: Path) -> Any:
    """Return the value in a JSON file; raise OSError or ValueError."""
    return parse_json(read_text(path))


def _create(folder: str, suffix: str) -> tuple[str, int]:
    """Create a file, locked so that the `sweep` of another process keeps it; return its name and descriptor."""
    while True:
        temporary = os.path.join(folder, f"{_PREFIX}{secrets.token_hex(6)}{suffix}")  # short, as names end
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        # A sweep between the two lines may have removed the file, or be about to.
        if _lock(descriptor) is not False and os.fstat(descriptor).st_nlink:
            return temporary, descriptor
        os.close(descriptor)


def _lock(descriptor: int) -> bool | None:
    """Return whether the file could be locked without waiting; None if the system has no locks."""
    try:
        import fcntl  # not on Windows

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (OSError, ImportError):
        return None
    return True


def _sync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
