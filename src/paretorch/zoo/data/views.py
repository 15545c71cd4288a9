"""What a network sees of a photograph of any size: a crop, and changes of colour.

Training, as the thesis does on ImageNet after Gross & Wilber (2016): a random part of the photograph, with 8 to 100 % of its area and
sides of a ratio between 3:4 and 4:3, is scaled to the size of the input by bicubic interpolation, and half are mirrored. With `jitter`,
brightness, contrast and saturation change by up to 40 % in random order, and lighting noise (Krizhevsky et al., 2012) is added.
Evaluation: the shorter side is scaled to `resize`, and the middle is cropped.

All changes of colour are affine in the three channels, so together they are one 3 × 4 matrix per image, [A | t] of x ↦ Ax + t. The bytes of
the crop and the matrix go to the device, which applies it to the batch: nothing is rounded or clipped in between.
"""

import io
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from paretorch.errors import ConfigError, MissingExtraError

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the channels over a sample of ImageNet, as Gross & Wilber have them."""
_GREY = np.array([0.299, 0.587, 0.114])
_STRENGTH = 0.4
_LIGHT = 0.1  # deviation of the lighting noise
_EIGENVALUES = np.array([0.2175, 0.0188, 0.0045])  # of the colours of ImageNet's pixels
_EIGENVECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
_TRIES = 10
_USUAL_ZOOM = 8 / 7  # 256 pixels for crops of 224

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
"""[3, height, width]"""
Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class View:
    """How photographs are cropped and changed.

    Args:
        size: Height and width of the crops.
        resize: The shorter side before the middle is cropped, for evaluation; 0: 8/7 of `size`.
        min_area: The least area of a random crop, in per cent of the photograph.
        flip: Mirror half of the training images.
        jitter: Change their colours.
    """

    size: int = 224
    resize: int = 0
    min_area: int = 8
    flip: bool = True
    jitter: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.min_area <= 100:
            raise ConfigError(f"data.options.min_area must be from 1 to 100 per cent, not {self.min_area}")
        if self.size < 1:
            raise ConfigError(f"data.options.size must be at least 1 pixel, not {self.size}")
        if self.resize and self.resize < self.size:
            raise ConfigError(
                f"data.options.resize={self.resize} is less than the {self.size} pixels that are cropped from it"
            )

    @property
    def zoom(self) -> int:
        """The shorter side before the middle is cropped."""
        return self.resize or round(self.size * _USUAL_ZOOM)


def pillow() -> Any:
    """The module PIL.Image."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("Image folders need the package pillow: pip install paretorch[images]") from error
    return Image


def for_training(data: bytes, view: View, key: str) -> tuple[Pixels, np.ndarray[Any, Any] | None]:
    """The pixels of a random crop, and the matrix of its colours if they are changed; a pure function of its arguments.

    Raises whatever Pillow raises for data that is no image.

    Args:
        data: The content of an image file.
        view: What to make of it.
        key: Decides all random numbers.
    """
    chance = random.Random(key)
    image = _open(data)
    box = _random_box(image.width, image.height, view.min_area / 100, chance)
    pixels = _crop(image, box, view.size) if box else _middle(image, view.size, view.size)
    if view.flip and chance.random() < 0.5:
        pixels = pixels[:, :, ::-1]
    return pixels, colours(pixels, chance) if view.jitter else None


def for_evaluation(data: bytes, view: View) -> Pixels:
    """The pixels of the middle. Raises whatever Pillow raises for data that is no image."""
    return _middle(_open(data), view.zoom, view.size)


def _open(data: bytes) -> Any:
    return pillow().open(io.BytesIO(data))


def _random_box(width: int, height: int, least: float, chance: random.Random) -> Box | None:
    """The part of the photograph to take; None if ten tries have given none that lies within."""
    for _ in range(_TRIES):
        area, ratio = width * height * chance.uniform(least, 1.0), chance.uniform(3 / 4, 4 / 3)
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if chance.random() < 0.5:
            wide, high = high, wide
        if 0 < wide <= width and 0 < high <= height:
            left, top = (int(chance.random() * (room + 1)) for room in (width - wide, height - high))
            return left, top, left + wide, top + high
    return None


def _middle(image: Any, zoom: int, size: int) -> Pixels:
    """The middle, once the shorter side is `zoom` pixels long."""
    part = min(image.width, image.height) * size / zoom
    wide = high = max(1, round(part))
    left, top = (image.width - wide) // 2, (image.height - high) // 2
    return _crop(image, (left, top, left + wide, top + high), size)


def _crop(image: Any, box: Box, size: int) -> Pixels:
    """A part of the photograph, scaled to a square."""
    width, height = image.size
    smaller = min(box[2] - box[0], box[3] - box[1])
    if smaller > size:  # a JPEG is decoded at 1/2, 1/4 or 1/8 of its size if that is enough
        image.draft("RGB", (math.ceil(width * size / smaller), math.ceil(height * size / smaller)))
    across, down = image.width / width, image.height / height
    scaled = (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
    if image.mode != "RGB":
        image = image.convert("RGB")
    resized = image.resize((size, size), pillow().Resampling.BICUBIC, box=scaled)
    pixels: Pixels = np.asarray(resized, np.uint8).transpose(2, 0, 1)
    return pixels


def colours(pixels: Pixels, chance: random.Random) -> np.ndarray[Any, Any]:
    """[A | t] for channels from 0 to 1."""
    mean = pixels.mean((1, 2)) / 255
    matrix, offset = np.eye(3), np.zeros(3)

    def brighten(share: float) -> None:
        nonlocal matrix, offset
        matrix, offset = share * matrix, share * offset

    def contrast(share: float) -> None:  # towards the mean grey of the image as it is by now
        nonlocal matrix, offset
        grey = _GREY @ (matrix @ mean + offset)
        matrix, offset = share * matrix, share * offset + (1 - share) * grey

    def saturate(share: float) -> None:  # towards the grey of each pixel
        nonlocal matrix, offset
        mix = share * np.eye(3) + (1 - share) * np.outer(np.ones(3), _GREY)
        matrix, offset = mix @ matrix, mix @ offset

    changes: list[Callable[[float], None]] = [brighten, contrast, saturate]
    chance.shuffle(changes)
    for change in changes:
        change(1 + chance.uniform(-_STRENGTH, _STRENGTH))
    light = _EIGENVECTORS @ (_EIGENVALUES * np.array([chance.gauss(0, _LIGHT) for _ in range(3)]))
    return np.concatenate([matrix, (offset + light)[:, None]], axis=1).astype(np.float32)
