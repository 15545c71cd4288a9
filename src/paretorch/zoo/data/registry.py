"""Sets of images by name, and the folder of the data."""

import os
from pathlib import Path

from paretorch.errors import ConfigError
from paretorch.zoo.data.images import Images


def load(name: str, root: str | Path | None = None, download: bool = False) -> Images:
    """Load a set of images.

    Args:
        name: "digits" (part of the package), "cifar10" or "cifar100".
        root: the folder of CIFAR, by default $PARETORCH_DATA, else ~/.cache/paretorch.
        download: fetch CIFAR into that folder if it is missing.

    Example:
        >>> from paretorch.zoo import data
        >>> images = data.load("digits")
        >>> images.train[0].shape, images.classes
        (torch.Size([1437, 1, 8, 8]), 10)
    """
    if name == "digits":
        from paretorch.zoo.data import digits

        return digits.load()
    if name in ("cifar10", "cifar100"):
        from paretorch.zoo.data import cifar

        return cifar.load(name, data_root(root), download)
    raise ConfigError(f"There is no image set {name!r}; there are: digits, cifar10, cifar100")


def data_root(root: str | Path | None = None) -> Path:
    """The folder of the data: `root`, else $PARETORCH_DATA, else ~/.cache/paretorch."""
    return Path(root or os.environ.get("PARETORCH_DATA") or "~/.cache/paretorch").expanduser()
