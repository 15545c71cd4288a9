"""Image sets by name."""

import os
from pathlib import Path

from paretorch.errors import ConfigError
from paretorch.zoo.data.images import Images


def load(name: str, root: str | Path | None = None, download: bool = False) -> Images:
    """The image set `name`: "digits" (comes with the package), "cifar10" or "cifar100".

    CIFAR is looked for under `root`, by default the environment variable PARETORCH_DATA, else ~/.cache/paretorch;
    with `download` it is fetched there when it is missing.
    """
    if name == "digits":
        from paretorch.zoo.data import digits

        return digits.load()
    if name in ("cifar10", "cifar100"):
        from paretorch.zoo.data import cifar

        return cifar.load(name, data_root(root), download)
    raise ConfigError(f"There is no image set {name!r}; there are: digits, cifar10, cifar100.")


def data_root(root: str | Path | None = None) -> Path:
    """The folder that data is looked for in: `root`, else $PARETORCH_DATA, else ~/.cache/paretorch."""
    return Path(root or os.environ.get("PARETORCH_DATA") or "~/.cache/paretorch").expanduser()
