"""Sets of images by name, and the folder of the data."""

import os
from pathlib import Path
from typing import Any

from paretorch.errors import ConfigError
from paretorch.zoo.data.images import Images


def load(name: str, root: str | Path | None = None, download: bool = False, **options: Any) -> Images:
    """Load a set of images.

    Args:
        name: "digits" (part of the package), "cifar10", "cifar100", or "folder:PATH" with a folder of images per class.
        root: the folder of CIFAR, by default $PARETORCH_DATA, else ~/.cache/paretorch.
        download: fetch CIFAR into that folder if it is missing.
        options: of "folder:PATH", see `paretorch.zoo.data.user_data.load_class_folders`.

    Example:
        >>> from paretorch.zoo import data
        >>> images = data.load("digits")
        >>> images.train[0].shape, images.classes
        (torch.Size([1437, 1, 8, 8]), 10)
    """
    if name.startswith("folder:"):
        from paretorch.zoo.data import user_data

        return user_data.load_class_folders(name.removeprefix("folder:"), **options)
    if name == "digits":
        from paretorch.zoo.data import digits

        return digits.load()
    if name in ("cifar10", "cifar100"):
        from paretorch.zoo.data import cifar

        return cifar.load(name, data_root(root), download)
    raise ConfigError(f"There is no image set {name!r}; there are: digits, cifar10, cifar100, folder:PATH")


def data_root(root: str | Path | None = None) -> Path:
    """The folder of the data: `root`, else $PARETORCH_DATA, else ~/.cache/paretorch."""
    return Path(root or os.environ.get("PARETORCH_DATA") or "~/.cache/paretorch").expanduser()
