"""A user's own data: images in one folder per class, what FILE.py:FUNCTION returns, and tables of the package datasets.

Images are all in memory here; those that are not are in `paretorch.zoo.data.on_disk`. A table is named hf:NAME_OR_FOLDER.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paretorch.errors import ConfigError, DataError, MissingExtraError
from paretorch.support.eval_mode import first_sentence
from paretorch.zoo.data.class_folders import Files, find_files
from paretorch.zoo.data.images import Images, statistics
from paretorch.zoo.data.views import pillow
from paretorch.zoo.user_code import call_function

_MOST_BYTES = 16 << 30


def load_class_folders(path: str | Path, *, size: int = 0, test_percent: int = 20, split_seed: int = 1) -> Images:
    """Load class folders.

    Args:
        size: Height and width; 0: that of the images, which must then all be alike. Others are scaled and cropped.
        test_percent: How much to hold out, if there is no folder of held-out images.
        split_seed: Of which images those are.
    """
    found = find_files(path, f"--data folder:{path}", test_percent=test_percent, split_seed=split_seed)
    train, test = found.train, found.test
    shape = _shape([file for file, _ in (*train, *test)], size, path)
    parts = _read(train, shape), _read(test, shape)
    return Images(f"folder:{path}", *parts, len(found.classes), *statistics(parts[0][0]))


def _open(file: str) -> Any:
    try:
        with pillow().open(file) as image:
            image.load()
            return image
    except Exception as error:  # a damaged file can make pillow raise anything
        raise DataError(f"{file} is not a readable image; replace or delete it") from error


def _shape(files: list[str], size: int, path: str | Path) -> tuple[int, int, int]:
    """Channels, height and width: grey if all images are."""
    channels = 1
    sizes: dict[tuple[int, int], str] = {}
    for file in files:
        try:
            with pillow().open(file) as image:
                channels = channels if image.mode in ("L", "1") else 3
                sizes.setdefault(image.size, file)
        except Exception as error:  # as above
            raise DataError(f"{file} is not a readable image; replace or delete it") from error
    if not size and len(sizes) > 1:
        (one, first), (other, second) = list(sizes.items())[:2]
        raise DataError(
            f"--data folder:{path} has images of several sizes ({Path(first).name} {one[0]}×{one[1]}, {Path(second).name} "
            f"{other[0]}×{other[1]}): add --set data.options.size=64, say"
        )
    width, height = (size, size) if size else next(iter(sizes))
    if len(files) * channels * width * height > _MOST_BYTES:
        raise ConfigError(
            f"--data folder:{path}: {len(files)} images of {width}×{height} do not fit in memory: read them from disk as they are "
            "needed, by --set data.options.stream=true, or set data.options.size lower"
        )
    return channels, height, width


def _read(files: Files, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
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
        image = image.resize((wide, high), pillow().Resampling.BICUBIC)
        left, top = (wide - width) // 2, (high - height) // 2
        image = image.crop((left, top, left + width, top + height))
    values = torch.from_numpy(np.array(image, np.uint8))
    return values.unsqueeze(0) if channels == 1 else values.permute(2, 0, 1)


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
