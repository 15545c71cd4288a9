"""Tar files of images and labels, as WebDataset has them: KEY.jpg beside KEY.cls, which holds the label as text.

A plain tar file says where each of its members begins, so that any image can be read by itself once all headers have been read.
The index of a set of files is kept in the user's cache until a file of it changes. The files are on a disk of this machine or on a shared file
system; compressed ones, pipes and addresses are refused.
"""

import glob
import hashlib
import os
import re
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paretorch.errors import ConfigError, DataError
from paretorch.support.files import replacing
from paretorch.zoo.data.class_folders import HELD_OUT, SUFFIXES

_BLOCK = 512  # bytes of a header, to which members are padded
_MOST_DIGITS = 20  # of a label
_MOST_SHARDS = 1_000_000
_FORMAT = "1"
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


class Members(NamedTuple):
    """The images of one or several tar files, an entry of each array per image."""

    shard: np.ndarray[Any, Any]
    offset: np.ndarray[Any, Any]
    length: np.ndarray[Any, Any]
    label: np.ndarray[Any, Any]


def find_shards(pattern: str, said: str) -> list[str]:
    """The files of a pattern such as train-{0000..0146}.tar or train-*.tar, sorted where it has a star.

    Args:
        pattern: Braces hold a range of numbers of equal length, or names with commas between them.
        said: How the user named it, for errors.
    """
    if pattern.startswith("pipe:") or "://" in pattern:
        raise ConfigError(f"{said}: tar files are read from this machine's file system; copy or mount them there")
    found = []
    for name in _expand(pattern, said):
        matching = sorted(glob.glob(name)) if any(one in name for one in "*?[") else [name]
        if not matching:
            raise ConfigError(f"{said}: no file matches {name}")
        found += matching
    if missing := [name for name in found if not os.path.isfile(name)]:
        raise ConfigError(f"{said}: there is no file {missing[0]}")
    if len(set(found)) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise ConfigError(f"{said} names {twice} twice")
    return found


def shards_of_folder(folder: Path, said: str) -> tuple[list[str], list[str]]:
    """The files of a folder with "train" in their names, and those with "val", "valid", "validation" or "test"."""
    names = sorted(one.path for one in os.scandir(folder) if one.name.endswith(".tar"))
    train = [name for name in names if "train" in os.path.basename(name)]
    rest = [name for name in names if name not in set(train)]
    test = [name for name in rest if any(part in os.path.basename(name) for part in HELD_OUT)]
    if not train or not test:
        wanted = "train" if not train else "val"
        raise ConfigError(f"{said}: {folder} has no tar file with {wanted!r} in its name")
    return train, test


def _expand(pattern: str, said: str) -> list[str]:
    found = _BRACES.search(pattern)
    if found is None:
        if "{" in pattern or "}" in pattern:
            raise ConfigError(f"{said}: the braces of {pattern} are not closed; write shard-{{0000..0009}}.tar")
        return [pattern]
    text = found[1]
    if (numbers := _RANGE.fullmatch(text)) is not None:
        first, last = int(numbers[1]), int(numbers[2])
        if last < first or last - first >= _MOST_SHARDS:
            raise ConfigError(f"{said}: {{{text}}} is no range; write {{0000..0009}}")
        values = [str(number).zfill(len(numbers[1])) for number in range(first, last + 1)]
    else:
        values = text.split(",")
    rests = _expand(pattern[found.end() :], said)
    return [pattern[: found.start()] + value + rest for value in values for rest in rests]


def index_shard(path: str) -> Members:
    """Read the headers of a tar file; raises DataError if it is none, cut, or lacks labels or images."""
    try:
        with tarfile.open(path, "r:") as archive, open(path, "rb") as file:
            images, labels = _members(archive, file, path)
            file.seek(archive.offset)  # where tarfile stopped, which it does without a word at the end of the file too
            if file.read(_BLOCK) != bytes(_BLOCK):
                raise DataError(f"{path} is cut or damaged at byte {archive.offset}: copy it again")
    except (tarfile.TarError, OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is no plain tar file, or is cut: {error}; copy it again, uncompressed") from error
    for key in sorted(images.keys() ^ labels.keys()):
        lacks = "no image beside its label" if key in labels else f"no label: there is no {key}.cls"
        raise DataError(f"{path}: {key} has {lacks}")
    if not images:
        raise DataError(f"{path} has no images ({', '.join(sorted(SUFFIXES))})")
    places = [images[key] for key in images]
    offsets, lengths = (np.array(part, np.int64) for part in zip(*places, strict=True))
    zeros = np.zeros(len(places), np.int32)
    return Members(zeros, offsets, lengths, np.array([labels[key] for key in images], np.int64))


def _members(archive: tarfile.TarFile, file: Any, path: str) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    for member in archive:
        if not member.isfile():
            continue
        folder, _, name = member.name.rpartition("/")
        stem, _, kind = name.partition(".")
        key = f"{folder}/{stem}" if folder else stem
        if f".{kind.lower()}" in SUFFIXES:
            if key in images:
                raise DataError(f"{path} has two images of {key}")
            images[key] = member.offset_data, member.size
        elif kind == "cls":
            file.seek(member.offset_data)
            content = file.read(length := min(member.size, _MOST_DIGITS))
            if len(content) < length:
                raise DataError(f"{path} is cut or damaged at byte {member.offset_data}: copy it again")
            labels[key] = _label(content, member.name, path)
        archive.members.clear()  # type: ignore[attr-defined]  # or it keeps all of them
    return images, labels


def _label(data: bytes, name: str, path: str) -> int:
    text = data.decode(errors="replace").strip()
    if not text.isascii() or not text.isdecimal():
        raise DataError(f"{path}: {name} should hold a label, a whole number from 0, not {text!r}")
    return int(text)


def name_of(path: str, offset: int) -> str:
    """The name of the member whose content begins at an offset, in a file that may have been damaged meanwhile."""
    place = f"byte {offset}"
    try:
        with tarfile.open(path, "r:") as archive:
            return next((one.name for one in archive if one.offset_data == offset), place)
    except (tarfile.TarError, OSError, ValueError, EOFError):
        return place


Run = Callable[[Callable[[str], Any], Sequence[str]], list[Any]]
"""Calls a function for each path, in processes perhaps."""


def index_shards(paths: Sequence[str], run: Run) -> Members:
    """The images of all files, from the cache if none has changed since."""
    cached = _cache(paths)
    if cached is not None and (known := _read(cached, len(paths))) is not None:
        return known
    parts = run(index_shard, paths)
    found = Members(
        np.concatenate([np.full(len(part.label), number, np.int32) for number, part in enumerate(parts)]),
        *(np.concatenate([part[field] for part in parts]) for field in range(1, 4)),
    )
    if cached is not None:
        _write(cached, found)
    return found


def _cache(paths: Sequence[str]) -> Path | None:
    """The file that holds the index of these files as they are now; None if there is no place for it."""
    digest = hashlib.sha256(_FORMAT.encode())
    for path in paths:
        state = os.stat(path)
        digest.update(f"{os.path.abspath(path)}\0{state.st_size}\0{state.st_mtime_ns}\n".encode(errors="replace"))
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paretorch"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder / f"shards-{digest.hexdigest()[:32]}.npz"


def _read(path: Path, shards: int) -> Members | None:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = Members(*(arrays[name] for name in Members._fields))
        shapes = {one.shape for one in found}
        whole = all(np.issubdtype(one.dtype, np.integer) and (one >= 0).all() for one in found)
        return found if len(shapes) == 1 and whole and found.shard.max(initial=0) < shards else None
    except Exception:  # a damaged file can make numpy raise anything, and is made again
        return None


def _write(path: Path, found: Members) -> None:
    try:
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, **found._asdict())
    except OSError:
        pass  # it is read again the next time
