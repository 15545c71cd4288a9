"""ImageNet from a folder of class folders, with the augmentation of Gross & Wilber (2016) that the thesis follows.

Training: a crop of random size and shape, scaled to 224×224 by bicubic interpolation; brightness, contrast and saturation
changed by up to 40 % in random order; lighting noise along the principal colours (Krizhevsky et al., 2012); mirroring.
Evaluation: the shorter side scaled to 256, then the middle 224×224. All random numbers are derived from (seed, epoch,
index), so a sample does not depend on the number of workers or the order of loading.
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
_LIGHTING_STD = 0.1
# the principal components of ImageNet's colours for pixels in [0, 1], one per column, and their standard deviations
_COLOUR_COMPONENTS = np.array(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]], np.float32
)
_COLOUR_STD = np.array([0.2175, 0.0188, 0.0045], np.float32)
_GREY_WEIGHTS = np.array([0.299, 0.587, 0.114], np.float32)

_Array = npt.NDArray[np.float32]


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """A dataset of (normalised image [3, size, size], class) for every image in folder/class/.

    Args:
        folder: holds one folder of images per class; classes are numbered in alphabetical order.
        train: augment the images at random.
        seed: of the augmentation.
        size: height and width of the images.
    """

    def __init__(self, folder: str | Path, train: bool, seed: int = 0, size: int = 224) -> None:
        _pillow()
        self.folder, self.train, self.seed, self.size = Path(folder), train, seed, size
        # in shared memory, so that persistent workers see a new epoch
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        if not self.folder.is_dir():
            raise DataError(f"There is no folder {self.folder}; it should hold one folder of images per class")
        self.classes = tuple(sorted(entry.name for entry in self.folder.iterdir() if entry.is_dir()))
        self.files: list[tuple[str, int]] = []
        for number, name in enumerate(self.classes):
            paths = sorted(str(path) for path in (self.folder / name).iterdir() if path.suffix.lower() in _SUFFIXES)
            self.files += [(path, number) for path in paths]
        if not self.files:
            raise DataError(f"There are no images in {self.folder}; it should hold one folder of images per class")

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which changes the random crops and colours."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.files[index]
        try:
            with _pillow().open(path) as file:
                image = file.convert("RGB")
        except Exception as error:  # a damaged file can make pillow raise anything
            raise DataError(f"{path} is not a readable image; replace or delete it") from error
        if self.train:
            rng = np.random.default_rng((self.seed, int(self._epoch), index))
            pixels = _jitter_colours(_pixels(_random_crop(image, self.size, rng)), rng)
            if rng.random() < 0.5:
                pixels = pixels[:, ::-1]
        else:
            pixels = _pixels(_centre_crop(image, self.size))
        normal = (pixels - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
        return torch.from_numpy(np.ascontiguousarray(normal.transpose(2, 0, 1))), label


def _random_crop(image: Any, size: int, rng: np.random.Generator) -> Any:
    """Crop 8 to 100 % of the area with sides of 3:4 to 4:3, or the largest middle square if ten tries do not fit."""
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


def _centre_crop(image: Any, size: int) -> Any:
    """Scale the shorter side to 256/224 of `size`, then crop the middle square."""
    width, height = image.size
    scale = size * 256 / 224 / min(width, height)
    image = _resize(image, (max(size, round(width * scale)), max(size, round(height * scale))), None)
    left, top = (image.width - size) // 2, (image.height - size) // 2
    return image.crop((left, top, left + size, top + size))


def _jitter_colours(pixels: _Array, rng: np.random.Generator) -> _Array:
    """Change brightness, contrast and saturation in random order, then lighting."""
    for kind in rng.permutation(3):
        strength = np.float32(1 + rng.uniform(-_JITTER, _JITTER))
        grey = (pixels @ _GREY_WEIGHTS)[:, :, None]
        towards = (np.float32(0), grey.mean(), grey)[kind]
        pixels = strength * pixels + (1 - strength) * towards
    return pixels + _COLOUR_COMPONENTS @ (rng.normal(0, _LIGHTING_STD, 3).astype(np.float32) * _COLOUR_STD)


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
