"""Calls to the operating system that fail, fall short, or are the last of the process.

`Faults(folder)` counts every call that changes files below a folder, while inside, and at one of them does what is asked.
Only this process is concerned, and only through Python: `os`, `fcntl.flock`, and files opened for writing.
"""

import builtins
import errno
import fcntl
import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EINTR": errno.EINTR}
DEATHS = ("die before", "die half", "die after")
MODES = (*ERRORS, "short write", *DEATHS)
"""What can happen at a call. A short write ends in ENOSPC with half of the bytes written; to die half is the same with SIGKILL."""
_NAMES = ("open", "close", "fsync", "replace", "rename", "link", "unlink", "chmod", "mkdir", "truncate", "ftruncate")
_FIXED = ("close",)
"""Calls that release something: they may be the last, but a failure of theirs leaks no data and is not made."""


class Faults:
    """Does one thing at one call, and counts all calls.

    Args:
        folder: Calls on files elsewhere are passed over.
        at: The number of the call, from 0; None: only count.
        mode: One of `MODES`.
        end: What is done in place of SIGKILL, if anything.
    """

    def __init__(self, folder: Path, at: int | None = None, mode: str = "EIO", end: Callable[[], None] | None = None):
        assert mode in MODES
        self.calls: list[str] = []
        self.happened = ""
        self._folder, self._at, self._mode = os.path.realpath(folder), at, mode
        self._end = end or _die
        self._descriptors: set[int] = set()
        self._before: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> "Faults":
        for name in _NAMES:
            self._patch(os, name)
        self._patch(fcntl, "flock")
        for module in (builtins, io):  # pathlib opens by the latter
            self._before.append((module, "open", module.open))
            module.open = self._open(module.open)  # type: ignore[attr-defined]
        return self

    def __exit__(self, *_: object) -> None:
        for module, name, function in reversed(self._before):
            setattr(module, name, function)

    def _patch(self, module: Any, name: str) -> None:
        function = getattr(module, name)
        self._before.append((module, name, function))

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._is_mine(args[0] if args else kwargs.get("path")):
                return function(*args, **kwargs)
            self._reach(name)
            try:
                result = function(*args, **kwargs)
            finally:
                self._leave()
            if name == "open":
                self._descriptors.add(result)
            elif name == "close":
                self._descriptors.discard(args[0])
            return result

        setattr(module, name, call)

    def _open(self, function: Any) -> Any:
        def call(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if not set(mode) & set("wxa+") or not self._is_mine(file):
                return function(file, mode, *args, **kwargs)
            self._reach("open")
            try:
                opened = function(file, mode, *args, **kwargs)
            finally:
                self._leave()
            return _File(opened, self)

        return call

    def _is_mine(self, what: Any) -> bool:
        if isinstance(what, int):
            return what in self._descriptors
        if hasattr(what, "fileno"):
            return False
        path = os.path.realpath(os.path.dirname(os.path.abspath(os.fspath(what))))
        return path == self._folder or path.startswith(self._folder + os.sep) or _same(what, self._folder)

    def _reach(self, name: str) -> None:
        """A call begins."""
        self.calls.append(name)
        if self._at != len(self.calls) - 1:
            return
        self.happened = name
        if self._mode == "die before" or (self._mode == "die half" and name != "write"):
            self._end()
        elif self._mode in ERRORS and name not in _FIXED:
            raise OSError(ERRORS[self._mode], os.strerror(ERRORS[self._mode]))
        elif self._mode == "short write" and name != "write" and name not in _FIXED:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _leave(self) -> None:
        """A call is done."""
        if self._at == len(self.calls) - 1 and self._mode == "die after":
            self._end()

    def write(self, file: Any, data: Any) -> Any:
        """Write, or half of it."""
        self._reach("write")
        if self._at == len(self.calls) - 1 and self._mode in ("short write", "die half"):
            file.write(data[: len(data) // 2])
            file.flush()
            if self._mode == "die half":
                self._end()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        result = file.write(data)
        file.flush()
        self._leave()
        return result


class _File:
    """A file that is written, with the calls on it counted."""

    def __init__(self, file: Any, faults: Faults) -> None:
        self._file, self._faults = file, faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Any:
        return iter(self._file)

    def write(self, data: Any) -> Any:
        return self._faults.write(self._file, data)

    def truncate(self, *size: int) -> Any:
        self._faults._reach("truncate")
        result = self._file.truncate(*size)
        self._faults._leave()
        return result

    def fileno(self) -> int:
        number = self._file.fileno()
        self._faults._descriptors.add(number)
        return int(number)

    def close(self) -> None:
        if not self._file.closed:
            self._faults._descriptors.discard(self._file.fileno())
        self._file.close()


def _same(path: Any, folder: str) -> bool:
    return os.path.realpath(os.path.abspath(os.fspath(path))) == folder


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(work: Callable[[], None]) -> int:
    """Call this in a process of its own, which begins as a copy of this one; returns its exit code, negative for a signal.

    This process must not have computed anything with torch in several threads: a copy has none of them.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
