"""C that comes with the package, compiled once for this machine and kept below $XDG_CACHE_HOME (by default ~/.cache)."""

from __future__ import annotations

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

_FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd", "-shared", "-fPIC", "-pthread")
_SECONDS = 60


def load(source: Path, definitions: Sequence[str]) -> ctypes.CDLL | None:
    """The library of a C file, or None where there is no compiler that makes one.

    $CC names the compiler; without it cc, gcc and clang are looked for.
    """
    compiler = _compiler()
    if compiler is None or os.name != "posix":
        return None
    words = [*compiler, *_FLAGS, *(f"-D{each}" for each in definitions)]
    name = f"{source.stem}-{_key(source, words)}.so"
    try:
        folder = _kept()
        if folder is not None:
            return ctypes.CDLL(str(_made(source, words, folder / name)))
        with TemporaryDirectory() as passing:  # once loaded, it need not stay
            return ctypes.CDLL(str(_made(source, words, Path(passing) / name)))
    except (OSError, subprocess.SubprocessError):
        return None


def _compiler() -> list[str] | None:
    for candidate in [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]:
        words = shlex.split(candidate)
        if words and shutil.which(words[0]):
            return words
    return None


def _made(source: Path, words: list[str], target: Path) -> Path:
    if target.exists():
        return target
    with TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        # Not every compiler knows what "native" is.
        if not _compiles([*words, "-march=native", str(source), "-o", str(made), "-lm"]):
            subprocess.run(
                [*words, str(source), "-o", str(made), "-lm"], check=True, capture_output=True, timeout=_SECONDS
            )
        os.replace(made, target)  # others may have made it meanwhile, or be loading it
    return target


def _compiles(words: list[str]) -> bool:
    return subprocess.run(words, check=False, capture_output=True, timeout=_SECONDS).returncode == 0


def _kept() -> Path | None:
    """Where libraries are kept, if nobody else can write there: what is found there will be run."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paretorch"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        private = found.st_uid == os.getuid() and not found.st_mode & 0o022
    except (OSError, RuntimeError, AttributeError):  # the last on Windows, which has no such owners
        return None
    return folder if private and os.access(folder, os.W_OK) else None


def _key(source: Path, words: list[str]) -> str:
    """Of all that the library depends on; home folders are shared by machines with other processors."""
    facts = [*words, platform.machine(), _processor()]
    compiler = shutil.which(words[0])
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
