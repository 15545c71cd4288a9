"""The files and the folder of a run: written whole, by one process at a time, and what to say where they cannot be."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paretorch.errors import PareError
from paretorch.support.checked_files import write_tensors
from paretorch.support.files import replacing, sweep

_ENDING = 1.0  # seconds for a process that is about to leave the folder
_claimed: dict[Path, tuple[float, bool]] = {}


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Replace the file; a crash, a kill or a full disk at any moment leaves the previous one untouched."""
    try:
        with replacing(path) as temporary, open(temporary, "wb") as file:
            file.write(data)
    except OSError as error:
        raise write_error(path, error) from error


def save_tensors(path: Path, content: Any, *, generations: int = 1) -> None:
    """Replace a file of tensors and plain values, with a checksum; of two generations the file that was there is kept."""
    try:
        write_tensors(path, content, generations=generations)
    except OSError as error:
        raise write_error(path, error) from error


def claim_folder(folder: Path, wait: float, *, enter: bool) -> None:
    """Say how `alone_in` treats this folder, which this process has claimed in a queue.

    Args:
        folder: The folder.
        wait: Seconds to wait for another process that holds its lock.
        enter: Whether to go in after that. A process that was stopped for so long that it lost its claim still holds the lock.
    """
    _claimed[folder.resolve()] = wait, enter


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make the folder; while inside, no other process gets into it this way. A kill lets others in again."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error) from error
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError, ImportError):  # Windows and some network file systems have no such locks
            _lock(folder, held)
        sweep(folder)
        yield


def _lock(folder: Path, held: contextlib.ExitStack) -> None:
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    held.callback(os.close, descriptor)
    wait, enter = _claimed.get(folder.resolve(), (_ENDING, False))
    end = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() >= end and enter:
                return
            if time.monotonic() >= end:
                raise PareError(
                    f"Another process is training in {folder}: wait for it, or choose another --out"
                ) from error
        time.sleep(0.05)


def write_error(path: Path, error: OSError) -> PareError:
    """The error to show when `path` cannot be written."""
    kept = "; the previous one is intact" if path.exists() else ""
    reason = (error.strerror or str(error)).lower()
    return PareError(
        f"Cannot write {path} ({reason}){kept}. Make room or make the folder writable and continue with --resume, "
        f"or choose another folder with --out"
    )
