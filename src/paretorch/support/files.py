"""Files that are either the old or the new version, whole, whatever happens in between and whoever else writes them."""

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

_BEGINS = ".pare."
_LEFT_BEHIND = 3600.0  # seconds: no file takes as long to write


@contextlib.contextmanager
def replacing(path: Path, suffix: str = "") -> Iterator[str]:
    """The name of a file to be written inside: it becomes the target when all has gone well, and goes if not.

    It is flushed to the disk, renamed over the target, and the folder flushed: a crash, a kill or a full disk at any moment
    leaves the previous file untouched. Every writer has a file of its own. A link stays one: what it points to is replaced;
    a target that is there keeps its mode.
    """
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    temporary = os.path.join(folder, f"{_BEGINS}{secrets.token_hex(6)}{suffix}")  # short, as names end
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
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


def sweep(folder: Path) -> None:
    """Remove what writers that were killed, an hour ago or earlier, have left in a folder."""
    for path in folder.glob(f"{_BEGINS}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _LEFT_BEHIND:
                path.unlink()


def _sync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
