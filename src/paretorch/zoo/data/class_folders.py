"""Images in one folder per class: PATH/train/CLASS/*.png and PATH/val/CLASS/*.png (or valid, validation, test) as they are; of
PATH/CLASS/*.png a part of each class is held out at random, the same each time.
"""

import os
from pathlib import Path
from typing import NamedTuple

import torch

from paretorch.errors import ConfigError, DataError

SUFFIXES = {".jpeg", ".jpg", ".png", ".bmp", ".webp"}
HELD_OUT = ("val", "valid", "validation", "test")

Files = list[tuple[str, int]]
"""Paths and labels. Strings: of a million images, objects of pathlib would take a gigabyte."""


class ClassFolders(NamedTuple):
    """The classes, by label, and the files of both parts."""

    classes: tuple[str, ...]
    train: Files
    test: Files


def find_files(path: str | Path, said: str, *, test_percent: int = 20, split_seed: int = 1) -> ClassFolders:
    """List the images of both parts.

    Args:
        path: The folder.
        said: How the user named it, for errors: "--data folder:photos".
        test_percent: How much to hold out, if there is no folder of held-out images.
        split_seed: Of which images those are.
    """
    root = Path(path)
    if not root.is_dir():
        raise ConfigError(f"{said}: there is no folder {root}")
    held_out = next((root / name for name in HELD_OUT if (root / name).is_dir()), None)
    if (root / "train").is_dir() and held_out is not None:
        classes = _classes(root / "train")
        if (others := _classes(held_out)) != classes:
            odd = sorted(set(classes) ^ set(others))[0]
            raise DataError(f"{said}: the class {odd!r} is not in both train and {held_out.name}")
        train, test = _files(root / "train", classes), _files(held_out, classes)
    else:
        classes = _classes(root)
        train, test = _split(_files(root, classes), test_percent, split_seed)
    if len(classes) < 2:
        raise DataError(f"{said}: there is one class, {classes[0]!r}; give a folder for each of two or more")
    if not train or not test:
        raise DataError(f"{said}: {len(train)} images to train and {len(test)} to test with are too few")
    return ClassFolders(classes, train, test)


def _classes(folder: Path) -> tuple[str, ...]:
    found = tuple(sorted(one.name for one in folder.iterdir() if one.is_dir() and not one.name.startswith(".")))
    if not found:
        raise DataError(f"--data: {folder} has no classes; it should hold one folder of images per class")
    return found


def _files(folder: Path, classes: tuple[str, ...]) -> Files:
    found: Files = []
    for label, name in enumerate(classes):
        with os.scandir(folder / name) as entries:
            files = sorted(one.path for one in entries if os.path.splitext(one.name)[1].lower() in SUFFIXES)
        if not files:
            raise DataError(f"--data: the class folder {folder / name} has no images ({', '.join(sorted(SUFFIXES))})")
        found += [(file, label) for file in files]
    return found


def _split(files: Files, percent: int, seed: int) -> tuple[Files, Files]:
    """Of each class the same share, so that no class is without test images if it has several."""
    if not 1 <= percent <= 99:
        raise ConfigError(f"data.options.test_percent must be from 1 to 99, not {percent}")
    generator = torch.Generator().manual_seed(seed)
    train: Files = []
    test: Files = []
    for label in sorted({label for _, label in files}):
        own = [one for one in files if one[1] == label]
        order = torch.randperm(len(own), generator=generator).tolist()
        count = min(len(own) - 1, max(1, round(len(own) * percent / 100)))
        test += [own[i] for i in sorted(order[:count])]
        train += [own[i] for i in sorted(order[count:])]
    return train, test
