"""A user's images: one folder per class, all in memory.

PATH/train/CLASS/*.png and PATH/val/CLASS/*.png (or valid, validation, test) are taken as they are; of PATH/CLASS/*.png a part
is held out at random, the same each time.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paretorch.errors import ConfigError, DataError, MissingExtraError
from paretorch.zoo.data.images import Images, statistics

_SUFFIXES = {".jpeg", ".jpg", ".png", ".bmp", ".webp"}
_HELD_OUT = ("val", "valid", "validation", "test")
_MOST_BYTES = 16 << 30
OPTIONS = {"size": 0, "test_percent": 20, "split_seed": 1}
"""What data.options may have, and the defaults; a size of 0 is that of the images."""


def load(path: str | Path, *, size: int = 0, test_percent: int = 20, split_seed: int = 1) -> Images:
    """Load class folders.

    Args:
        size: Height and width; 0: that of the images, which must then all be alike. Others are scaled and cropped.
        test_percent: How much to hold out, if there is no folder of held-out images.
        split_seed: Of which images those are.
    """
    root = Path(path)
    if not root.is_dir():
        raise ConfigError(f"--data folder:{path}: there is no folder {root}")
    held_out = next((root / name for name in _HELD_OUT if (root / name).is_dir()), None)
    if (root / "train").is_dir() and held_out is not None:
        classes = _classes(root / "train")
        if (others := _classes(held_out)) != classes:
            odd = sorted(set(classes) ^ set(others))[0]
            raise DataError(f"--data folder:{path}: the class {odd!r} is not in both train and {held_out.name}")
        train, test = _files(root / "train", classes), _files(held_out, classes)
    else:
        classes = _classes(root)
        train, test = _split(_files(root, classes), test_percent, split_seed)
    if len(classes) < 2:
        raise DataError(
            f"--data folder:{path}: there is one class, {classes[0]!r}; give a folder for each of two or more"
        )
    if not train or not test:
        raise DataError(f"--data folder:{path}: {len(train)} images to train and {len(test)} to test with are too few")
    shape = _shape([file for file, _ in (*train, *test)], size, path)
    parts = _read(train, shape), _read(test, shape)
    return Images(f"folder:{path}", *parts, len(classes), *statistics(parts[0][0]))


def _classes(folder: Path) -> tuple[str, ...]:
    found = tuple(sorted(one.name for one in folder.iterdir() if one.is_dir() and not one.name.startswith(".")))
    if not found:
        raise DataError(f"--data: {folder} has no classes; it should hold one folder of images per class")
    return found


def _files(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    found = []
    for number, name in enumerate(classes):
        files = sorted(one for one in (folder / name).iterdir() if one.suffix.lower() in _SUFFIXES)
        if not files:
            raise DataError(f"--data: the class folder {folder / name} has no images ({', '.join(sorted(_SUFFIXES))})")
        found += [(file, number) for file in files]
    return found


def _split(
    files: list[tuple[Path, int]], percent: int, seed: int
) -> tuple[list[tuple[Path, int]], list[tuple[Path, int]]]:
    """Of each class the same share, so that no class is without test images if it has several."""
    if not 1 <= percent <= 99:
        raise ConfigError(f"data.options.test_percent must be from 1 to 99, not {percent}")
    generator = torch.Generator().manual_seed(seed)
    train, test = [], []
    for label in sorted({label for _, label in files}):
        own = [one for one in files if one[1] == label]
        order = torch.randperm(len(own), generator=generator).tolist()
        count = min(len(own) - 1, max(1, round(len(own) * percent / 100)))
        test += [own[i] for i in sorted(order[:count])]
        train += [own[i] for i in sorted(order[count:])]
    return train, test


def _open(file: Path) -> Any:
    try:
        with _pillow().open(file) as image:
            image.load()
            return image
    except Exception as error:  # a damaged file can make pillow raise anything
        raise DataError(f"{file} is not a readable image; replace or delete it") from error


def _shape(files: list[Path], size: int, path: str | Path) -> tuple[int, int, int]:
    """Channels, height and width: grey if all images are."""
    channels = 1
    sizes: dict[tuple[int, int], Path] = {}
    for file in files:
        try:
            with _pillow().open(file) as image:
                channels = channels if image.mode in ("L", "1") else 3
                sizes.setdefault(image.size, file)
        except Exception as error:  # as above
            raise DataError(f"{file} is not a readable image; replace or delete it") from error
    if not size and len(sizes) > 1:
        (one, first), (other, second) = list(sizes.items())[:2]
        raise DataError(
            f"--data folder:{path} has images of several sizes ({first.name} {one[0]}×{one[1]}, {second.name} "
            f"{other[0]}×{other[1]}): add --set data.options.size=64, say"
        )
    width, height = (size, size) if size else next(iter(sizes))
    if len(files) * channels * width * height > _MOST_BYTES:
        raise ConfigError(
            f"--data folder:{path}: {len(files)} images of {width}×{height} do not fit in memory: set data.options.size lower"
        )
    return channels, height, width


def _read(files: list[tuple[Path, int]], shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    pixels = torch.empty(len(files), *shape, dtype=torch.uint8)
    for i, (file, _) in enumerate(files):
        pixels[i] = to_pixels(_open(file), shape)
    return pixels, torch.tensor([label for _, label in files])


def to_pixels(image: Any, shape: tuple[int, int, int]) -> Tensor:
    """An image as bytes [channels, height, width]: scaled until it covers the shape, and its middle cropped."""
    channels, height, width = shape
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        scale = max(width / image.width, height / image.height)
        wide, high = max(width, round(image.width * scale)), max(height, round(image.height * scale))
        image = image.resize((wide, high), _pillow().Resampling.BICUBIC)
        left, top = (wide - width) // 2, (high - height) // 2
        image = image.crop((left, top, left + width, top + height))
    values = torch.from_numpy(np.array(image, np.uint8))
    return values.unsqueeze(0) if channels == 1 else values.permute(2, 0, 1)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("Image folders need the package pillow: pip install paretorch[images]") from error
    return Image
