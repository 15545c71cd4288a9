"""Random crops, flips and cutout of a whole epoch at once, on the device that holds the images.

The pipeline of He et al. (2016): black pixels are padded to the raw image before it is normalised, a crop of the
original size is taken at random, and half of the images are mirrored. Cutout (DeVries & Taylor, 2017) blacks out a
square whose centre is any pixel, so that it may reach over the border.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from paretorch.errors import ConfigError

_CHUNK = 2**25  # pixels treated at once: bounds the extra memory


@dataclass(frozen=True)
class Augment:
    """What is done to training images: border added before cropping, mirroring, side of the square cut out."""

    pad: int = 4
    flip: bool = True
    cutout: int = 0

    def __post_init__(self) -> None:
        if self.pad < 0 or self.cutout < 0:
            raise ConfigError(f"pad and cutout are numbers of pixels, at least 0, not {self.pad} and {self.cutout}.")


def augment(images: Tensor, how: Augment, seed: int) -> Tensor:
    """A new tensor of the same shape and dtype: every image [N, C, H, W] transformed with its own random numbers.

    A pure function of its arguments: the generator is seeded here and lives on the images' device, and all numbers are
    drawn before any pixel is touched. (CPU and CUDA generators draw different numbers from one seed.)
    """
    count, channels, height, width = images.shape
    draws = _draw(how, count, height, width, images.device, seed)
    out = torch.empty_like(images)
    size = max(1, _CHUNK // max(1, channels * height * width))
    for start in range(0, count, size):
        part = slice(start, start + size)
        out[part] = _transform(images[part], how, *(draw[part] for draw in draws))
    return out


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype) -> Tensor:
    """(pixel / 255 − mean) / std per channel, computed in fp32 and then rounded to `dtype`."""
    shape = (1, len(mean), 1, 1)
    centre = torch.tensor([255 * value for value in mean], device=images.device).view(shape)
    scale = torch.tensor([1 / (255 * value) for value in std], device=images.device).view(shape)
    return ((images.float() - centre) * scale).to(dtype)


def _draw(how: Augment, count: int, height: int, width: int, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator(device).manual_seed(seed)

    def integers(high: int) -> Tensor:
        return torch.randint(high, (count,), generator=generator, device=device)

    top, left, mirrored = integers(2 * how.pad + 1), integers(2 * how.pad + 1), integers(2)
    return top, left, mirrored.bool(), integers(height), integers(width)


def _transform(
    images: Tensor, how: Augment, top: Tensor, left: Tensor, mirrored: Tensor, row: Tensor, column: Tensor
) -> Tensor:
    height, width = images.shape[2:]
    # every crop of every padded image, as a view; indexing copies the chosen ones alone
    crops = F.pad(images, (how.pad,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    out = crops[torch.arange(len(images), device=images.device), :, top, left]
    if how.flip:
        out = torch.where(mirrored[:, None, None, None], out.flip(-1), out)
    if how.cutout:
        in_rows = _within(height, row, how.cutout)[:, :, None]
        in_columns = _within(width, column, how.cutout)[:, None, :]
        out = out.masked_fill((in_rows & in_columns)[:, None], 0)
    return out


def _within(size: int, centre: Tensor, side: int) -> Tensor:
    """Which of `size` positions lie in [centre − side // 2, centre − side // 2 + side), one row per centre."""
    offset = torch.arange(size, device=centre.device) - (centre[:, None] - side // 2)
    return (offset >= 0) & (offset < side)
