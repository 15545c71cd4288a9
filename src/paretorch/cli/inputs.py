"""What the inputs of a run look like, from its folder."""

import json
from pathlib import Path
from typing import Any

SHAPES = {"digits": (1, 8, 8), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}
"""Of one image of a data set."""


def data_of(folder: Path) -> str:
    """The data set of the run in that folder; empty where there is no run."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        return str(config["recipe"]["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
