"""ImageNet from a folder of class folders, with the augmentation of Gross & Wilber (2016) that the thesis follows.

Training: a crop of random size and shape brought to 224×224 by bicubic interpolation, brightness, contrast and saturation
changed by up to 40 % in random order, lighting noise along the principal colours (Krizhevsky et al., 2012), mirroring.
Evaluation: the shorter side to 256, the middle 224×224. Every random number comes from (seed, epoch, index), so what a
sample looks like depends neither on workers nor on order.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from paretorch.errors import DataError, MissingExtraError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

_SUFFIXES = {".jpeg", ".jpg", ".png", ".bmp", ".webp"}
_JITTER = 0.4
_LIGHTING = 0.1
# principal components of ImageNet's colours, pixels in [0, 1]: a column each, and their standard deviations
_COLOURS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]], np.float32)
_SPREAD = np.array([0.2175, 0.0188, 0.0045], np.float32)
_GREY = np.array([0.299, 0.587, 0.114], np.float32)

_Array = npt.NDArray[np.float32]


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """(normalised image [3, size, size], class) for every image in folder/class/; classes in alphabetical order."""

    def __init__(self, folder: str | Path, train: bool, seed: int = 0, size: int = 224) -> None:
        _pillow()
        self.folder, self.train, self.seed, self.size = Path(folder), train, seed, size
        # shared memory, so that workers which outlive an epoch see the next one begin
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        if not self.folder.is_dir():
            raise DataError(f"There is no folder {self.folder}; it should hold one folder of images for each class.")
        self.classes = tuple(sorted(entry.name for entry in self.folder.iterdir() if entry.is_dir()))
        self.files: list[tuple[str, int]] = []
        for number, name in enumerate(self.classes):
            paths = sorted(str(path) for path in (self.folder / name).iterdir() if path.suffix.lower() in _SUFFIXES)
            self.files += [(path, number) for path in paths]
        if not self.files:
            raise DataError(
                f"There are no images in {self.folder}; it should hold one folder of images for each class."
            )

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch: the same images, differently cropped and coloured."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.files[index]
        try:
            with _pillow().open(path) as file:
                image = file.convert("RGB")
        except Exception as error:  # what a damaged file makes of pillow's readers is not ours to list
            raise DataError(f"{path} is not a readable image; replace or delete it.") from error
        if self.train:
            rng = np.random.default_rng((self.seed, int(self._epoch), index))
            pixels = _colour(_pixels(_random_crop(image, self.size, rng)), rng)
            if rng.random() < 0.5:
                pixels = pixels[:, ::-1]
        else:
            pixels = _pixels(_middle(image, self.size))
        normal = (pixels - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
        return torch.from_numpy(np.ascontiguousarray(normal.transpose(2, 0, 1))), label


def _random_crop(image: Any, size: int, rng: np.random.Generator) -> Any:
    """8 to 100 % of the area, sides 3:4 to 4:3; the largest middle square if ten tries do not fit."""
    width, height = image.size
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return _resize(image, (size, size), (left, top, left + w, top + h))
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return _resize(image, (size, size), (left, top, left + side, top + side))


def _middle(image: Any, size: int) -> Any:
    """The shorter side to 256/224 of `size`, then the middle square."""
    width, height = image.size
    scale = size * 256 / 224 / min(width, height)
    image = _resize(image, (max(size, round(width * scale)), max(size, round(height * scale))), None)
    left, top = (image.width - size) // 2, (image.height - size) // 2
    return image.crop((left, top, left + size, top + size))


def _colour(pixels: _Array, rng: np.random.Generator) -> _Array:
    """Brightness, contrast and saturation in random order, then lighting."""
    for kind in rng.permutation(3):
        strength = np.float32(1 + rng.uniform(-_JITTER, _JITTER))
        grey = (pixels @ _GREY)[:, :, None]
        towards = (np.float32(0), grey.mean(), grey)[kind]
        pixels = strength * pixels + (1 - strength) * towards
    return pixels + _COLOURS @ (rng.normal(0, _LIGHTING, 3).astype(np.float32) * _SPREAD)


def _pixels(image: Any) -> _Array:
    return np.asarray(image, np.float32) / np.float32(255)


def _resize(image: Any, size: tuple[int, int], box: tuple[int, int, int, int] | None) -> Any:
    return image.resize(size, _pillow().Resampling.BICUBIC, box=box)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("Image folders need the package pillow: pip install paretorch[images]") from error
    return Image
