"""A set of labelled images in memory."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

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


def statistics(pixels: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of uint8 `pixels`, scaled to [0, 1].

    Computed from the histogram of the 256 values: exact, and without a float copy of the set.
    """
    values = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for channel in pixels.unbind(1):
        frequency = torch.bincount(channel.flatten(), minlength=256).to(torch.float64).cpu() / channel.numel()
        mean = frequency @ values
        means.append(float(mean))
        deviations.append(float((frequency @ (values - mean) ** 2).sqrt()))
    return tuple(means), tuple(deviations)
