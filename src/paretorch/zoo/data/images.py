"""Sets of labelled images in memory, and the augmentation of a whole epoch at once, on the device of the images.

The pipeline of He et al. (2016): the raw image is padded with black pixels before it is normalised, a random crop of the
original size is taken, and half of the images are mirrored. Cutout (DeVries & Taylor, 2017) sets a square to black. Its
centre is any pixel, so a part of it may be outside the image.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from paretorch.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Images:
    """A training and a test set.

    Args:
        name: of the set.
        train: uint8 pixels [N, C, H, W] and int64 labels [N].
        test: the same.
        classes: how many.
        mean: per channel of the training set, for pixels scaled to [0, 1].
        std: the same.
    """

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def validation(self, count: int, seed: int) -> "Images":
        """Return a set whose test part is `count` random training images, so that tuning never sees the real test part.

        A pure function of (count, seed). `mean` and `std` stay those of the whole training set.
        """
        pixels, labels = self.train
        if not 0 < count < len(labels):
            raise ConfigError(f"A validation set of {count} images cannot be split off {len(labels)} training images")
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
        held, kept = order[:count], order[count:]
        return replace(self, train=(pixels[kept], labels[kept]), test=(pixels[held], labels[held]))

    def to(self, device: torch.device | str) -> "Images":
        """Return the same images on another device."""
        return replace(
            self,
            train=(self.train[0].to(device), self.train[1].to(device)),
            test=(self.test[0].to(device), self.test[1].to(device)),
        )


_CONSTANT = 1e-9  # below what one pixel of another value makes in a set that fits into memory


def statistics(pixels: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of uint8 `pixels`, scaled to [0, 1].

    Computed from the histogram of the 256 values: exact, and without a float copy of the set. A channel that is the same everywhere
    has a deviation of 1, by which it can be divided.
    """
    values = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for channel in pixels.unbind(1):
        frequency = torch.bincount(channel.flatten(), minlength=256).to("cpu", torch.float64) / channel.numel()
        mean = frequency @ values
        means.append(float(mean))
        deviation = float((frequency @ (values - mean) ** 2).sqrt())
        deviations.append(deviation if deviation > _CONSTANT else 1.0)
    return tuple(means), tuple(deviations)


_MAX_PIXELS = 2**25  # processed at once, which limits the memory for temporaries


@dataclass(frozen=True)
class Augment:
    """How training images are changed.

    Args:
        pad: pixels added on each side before cropping.
        flip: mirror half of the images.
        cutout: side of the square that is set to black; 0 for none.
    """

    pad: int = 4
    flip: bool = True
    cutout: int = 0

    def __post_init__(self) -> None:
        if self.pad < 0 or self.cutout < 0:
            raise ConfigError(f"pad and cutout are numbers of pixels, at least 0, not {self.pad} and {self.cutout}")


def augment(images: Tensor, how: Augment, seed: int) -> Tensor:
    """Transform every image with its own random numbers, and return a new tensor of the same shape and dtype.

    A pure function of its arguments. The random generator is on the device of the images; CPU and CUDA generators draw
    different numbers from the same seed.

    Args:
        images: [N, C, H, W].
        how: which transformations.
        seed: of the random numbers.
    """
    count, channels, height, width = images.shape
    if how.pad > max(height, width):
        largest = max(height, width)
        raise ConfigError(f"pad={how.pad} is more than the {largest} pixels of an image: give {largest} at most")
    draws = _draw(how, count, height, width, images.device, seed)
    out = torch.empty_like(images)
    size = max(1, _MAX_PIXELS // max(1, channels * height * width))
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
    # a view of all crops of all padded images; indexing copies only the chosen ones
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
