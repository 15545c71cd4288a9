"""timm, which imports torchvision, whose compiled operators fit one release of torch only.

`make` puts both into the folder `timm` of the environment and not among its packages: there, a torchvision for another
torch would stop lightning, torchmetrics and transformers from being imported. The operators that torchvision describes
to torch as it is imported are declared here if its library did not load. No network of timm calls one of them.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import torch

FOLDER = Path(sys.prefix) / "timm"
_DESCRIBED = ("nms", "qnms")


def import_timm() -> ModuleType:
    """timm itself, from its folder or from the environment."""
    if FOLDER.is_dir() and str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
        importlib.invalidate_caches()
    try:
        return importlib.import_module("timm")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] in ("timm", "torchvision")]:
        del sys.modules[name]
    for name in _DESCRIBED:
        torch.library.define(f"torchvision::{name}", "(Tensor boxes, Tensor scores, float overlap) -> Tensor")
    return importlib.import_module("timm")
