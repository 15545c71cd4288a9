"""C code of this library: compiled once by the C compiler of the machine, and kept below $XDG_CACHE_HOME (by default ~/.cache).

What is in the cache is checked before it is loaded. Without a compiler there is no library, and callers compute by torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from paretorch.support.files import replacing, sweep

_COMPILER_FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd", "-shared", "-fPIC", "-pthread")
_COMPILE_TIMEOUT = 60
"""Seconds."""


def load_library(source: Path, definitions: Sequence[str] = ()) -> ctypes.CDLL | None:
    """Return a C file as a library, compiled with these definitions or taken from the cache; None if that fails."""
    compiler = find_compiler()
    if compiler is None or os.name != "posix":
        return None
    command = [*compiler, *_COMPILER_FLAGS, *(f"-D{each}" for each in definitions)]
    name = f"{source.stem}-{_build_key(source, command)}"
    try:
        folder = _cache_folder()
        cached = None if folder is None else _find_cached(folder, name)
        if cached is not None:
            return ctypes.CDLL(str(cached))
        with TemporaryDirectory() as scratch:  # a library that is loaded stays usable after its file is gone
            compiled = _compile(source, command, Path(scratch) / f"{name}.so")
            if folder is not None:
                with contextlib.suppress(OSError):  # a full disk, for example: then it is compiled again next time
                    compiled = _keep(compiled, folder, name)
            return ctypes.CDLL(str(compiled))
    except (OSError, subprocess.SubprocessError):
        return None


def find_compiler() -> list[str] | None:
    """The command of the C compiler: $CC if it is set, else the first of cc, gcc and clang that is installed."""
    for candidate in [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]:
        words = shlex.split(candidate)
        if words and shutil.which(words[0]):
            return words
    return None


def _compile(source: Path, command: list[str], target: Path) -> Path:
    # Not every compiler knows -march=native.
    for extra, required in ((["-march=native"], False), ([], True)):
        words = [*command, *extra, str(source), "-o", str(target), "-lm"]
        done = subprocess.run(words, check=required, capture_output=True, timeout=_COMPILE_TIMEOUT)
        if done.returncode == 0:
            break
    return target


def _keep(compiled: Path, folder: Path, name: str) -> Path:
    """Copy a library into the cache under a name that holds the digest of its content."""
    sweep(folder)
    content = compiled.read_bytes()
    target = folder / f"{name}-{_digest(content)}.so"
    with replacing(target) as temporary:  # whole or not at all; other processes may be loading the same file
        Path(temporary).write_bytes(content)
    return target


def _find_cached(folder: Path, name: str) -> Path | None:
    """The library in the cache whose content has the digest in its name. Damaged ones are removed.

    Loading a truncated library ends the process with SIGBUS, so it has to be found by reading. The digest protects from
    accidents only; `_cache_folder` protects from other users.
    """
    for path in sorted(folder.glob(f"{name}-*.so")):
        with contextlib.suppress(OSError):  # another process may have removed it
            if path.is_file() and path.stem == f"{name}-{_digest(path.read_bytes())}":
                return path
            path.unlink()
    return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _cache_folder() -> Path | None:
    """The folder of compiled libraries, or None if others could write there: its content is executed."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paretorch"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        private = found.st_uid == os.getuid() and not found.st_mode & 0o022
    except (OSError, RuntimeError, AttributeError):  # AttributeError on Windows, which has no getuid
        return None
    return folder if private and os.access(folder, os.W_OK) else None


def _build_key(source: Path, command: list[str]) -> str:
    """A hash of all that the library depends on, the processor included: home folders are shared between machines."""
    facts = [*command, platform.machine(), _processor()]
    compiler = shutil.which(command[0])
    if compiler:
        facts.append(f"{os.path.realpath(compiler)} {os.stat(compiler).st_mtime_ns}")
    return hashlib.sha256(source.read_bytes() + "\n".join(facts).encode()).hexdigest()[:16]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return "".join(
        next((line for line in lines if line.startswith(word)), "") for word in ("model name", "flags", "Features")
    )
