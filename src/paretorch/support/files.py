"""Files that are either the old or the new version, whole, whatever happens in between and whoever else writes them."""

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

_BEGINS = ".pare."
_LEFT_BEHIND = 3600.0  # seconds: no file takes as long to write
_LONGEST = 1 << 30  # bytes of a text file that is read whole


@contextlib.contextmanager
def replacing(path: Path, suffix: str = "") -> Iterator[str]:
    """The name of a file to be written inside: it becomes the target when all has gone well, and goes if not.

    It is flushed to the disk, renamed over the target, and the folder flushed: a crash, a kill or a full disk at any moment
    leaves the previous file untouched. Every writer has a file of its own. A link stays one: what it points to is replaced;
    a target that is there keeps its mode.
    """
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    temporary, descriptor = _create(folder, suffix)
    try:
        yield temporary
        _sync(temporary, os.O_RDWR)
        with contextlib.suppress(FileNotFoundError):
            os.chmod(temporary, stat.S_IMODE(os.stat(target).st_mode))
        os.replace(temporary, target)
        with contextlib.suppress(OSError):  # the file is in its place; some systems do not flush folders
            _sync(folder, os.O_RDONLY)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        os.close(descriptor)  # which releases the lock


def sweep(folder: Path) -> None:
    """Remove the temporary files that killed writers have left in a folder.

    A writer holds a lock on its file, which the system releases when it ends, however it ends. On file systems without locks
    a file counts as left behind after an hour.
    """
    for path in folder.glob(f"{_BEGINS}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))
            try:
                locked = _lock(descriptor)
                old = time.time() - os.fstat(descriptor).st_mtime > _LEFT_BEHIND
                if locked or (locked is None and old):
                    path.unlink()
            finally:
                os.close(descriptor)


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; raises OSError for what is no regular file, such as a FIFO, which would block."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return open(descriptor, "rb")


def read_text(path: Path) -> str:
    """The text of a regular file of at most 1 GiB; raises OSError, or ValueError if it is no UTF-8 or too long."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > _LONGEST:
            raise ValueError(f"{path} is longer than {_LONGEST} bytes")
        return file.read().decode("utf-8")


def parse_json(text: str) -> Any:
    """The value of a JSON text; raises ValueError, also if it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text; raises ValueError, also if it is nested too deeply."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_json(path: Path) -> Any:
    """The value in a JSON file; raises OSError or ValueError."""
    return parse_json(read_text(path))


def _create(folder: str, suffix: str) -> tuple[str, int]:
    """A new file of this process, locked: the sweep of another process leaves it alone."""
    while True:
        temporary = os.path.join(folder, f"{_BEGINS}{secrets.token_hex(6)}{suffix}")  # short, as names end
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        # A sweep may have come between the two lines: then the file is gone, or about to go.
        if _lock(descriptor) is not False and os.fstat(descriptor).st_nlink:
            return temporary, descriptor
        os.close(descriptor)


def _lock(descriptor: int) -> bool | None:
    """Whether the file could be locked, at once; None if there are no locks here."""
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
