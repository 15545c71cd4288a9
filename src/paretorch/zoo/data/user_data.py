"""A user's own data: images in one folder per class, what FILE.py:FUNCTION returns, and tables of the package datasets.

Images are all in memory. PATH/train/CLASS/*.png and PATH/val/CLASS/*.png (or valid, validation, test) are taken as they are; of
PATH/CLASS/*.png a part is held out at random, the same each time. A table is named hf:NAME_OR_FOLDER.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paretorch.errors import ConfigError, DataError, MissingExtraError
from paretorch.support.eval_mode import first_sentence
from paretorch.zoo.data.images import Images, statistics
from paretorch.zoo.user_code import call_function

_SUFFIXES = {".jpeg", ".jpg", ".png", ".bmp", ".webp"}
_HELD_OUT = ("val", "valid", "validation", "test")
_MOST_BYTES = 16 << 30
FOLDER_OPTIONS = {"size": 0, "test_percent": 20, "split_seed": 1}
"""What data.options may have, and the defaults; a size of 0 is that of the images."""


def load_class_folders(path: str | Path, *, size: int = 0, test_percent: int = 20, split_seed: int = 1) -> Images:
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


_PARTS = ("train", "validation", "test")
_LABELS = ("labels", "label", "target", "targets", "fine_label")


class Loaders(NamedTuple):
    """Batches to train, validate and test with; `validation` may be missing."""

    train: Iterable[Any]
    validation: Iterable[Any] | None
    test: Iterable[Any]


def user_loaders(name: str, options: Mapping[str, Any]) -> Loaders:
    """What a user's function returns: (train, test), (train, validation, test), or a dict with these names."""
    found = call_function(name, "--data", **options)
    if isinstance(found, Mapping):
        if not {"train", "test"} <= set(found) <= set(_PARTS):
            raise ConfigError(
                f"--data {name} returns a dict with {', '.join(map(str, found))}: name the parts train and test"
            )
        parts = [found["train"], found.get("validation"), found["test"]]
    elif isinstance(found, tuple | list) and len(found) in (2, 3):
        parts = [found[0], None if len(found) == 2 else found[1], found[-1]]
    else:
        raise ConfigError(f"--data {name} returns {type(found).__name__}: return (train, test), two loaders of batches")
    for part in parts:
        if part is not None and (iter(part) is part if hasattr(part, "__iter__") else True):
            raise ConfigError(f"--data {name}: each part must be a loader or a list, which can be read again")
    return Loaders(*parts)


class Table:
    """Batches of rows of one table in memory, shuffled by torch's seed if asked for."""

    def __init__(self, columns: dict[str, Tensor], batch: int, *, shuffle: bool) -> None:
        self._columns, self._batch, self._shuffle = columns, batch, shuffle
        self._rows = len(next(iter(columns.values())))

    def __len__(self) -> int:
        return -(-self._rows // self._batch)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        order = torch.randperm(self._rows) if self._shuffle else torch.arange(self._rows)
        for part in order.split(self._batch):
            yield {name: column[part] for name, column in self._columns.items()}


def table_loaders(name: str, batch: int) -> Loaders:
    """The parts of a data set of the package datasets whose columns are numbers, such as tokens; images and text are refused."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(f"--data {name} needs datasets: pip install paretorch[data]") from error
    place = name.removeprefix("hf:")
    try:
        saved = Path(place, "dataset_dict.json").exists()  # as save_to_disk leaves it
        found = datasets.load_from_disk(place) if saved else datasets.load_dataset(place)
    except Exception as error:  # datasets and its hub raise many kinds
        raise ConfigError(f"--data {name} cannot be loaded: {first_sentence(error)}") from error
    parts = {part: found[part] for part in _PARTS if part in found}
    test = "test" if "test" in parts else "validation"
    if not {"train", test} <= parts.keys():
        raise DataError(f"--data {name} has the parts {', '.join(found)}: train and test are needed")
    loaders = {part: Table(_columns(rows, name), batch, shuffle=part == "train") for part, rows in parts.items()}
    return Loaders(loaders["train"], loaders.get("validation"), loaders[test])


def _columns(rows: Any, name: str) -> dict[str, Tensor]:
    columns = {}
    for column in rows.column_names:
        try:
            values = torch.tensor(list(rows[column]))
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"--data {name}: the column {column!r} is not numbers of one length per row; tokenize and pad it first, or give "
                "batches by --data FILE.py:FUNCTION"
            ) from error
        columns["labels" if column in _LABELS else column] = values
    if not columns or not len(next(iter(columns.values()))):
        raise DataError(f"--data {name} has a part without rows")
    return columns
