"""The networks, one file per family, and what all have in common: which layers a method leaves out, the name, and the start.

`paretorch.zoo.build` builds them by name.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from torch import nn


class Network(nn.Module):
    """A module with the layers that a recipe leaves out, and with the name and options to build it again."""

    leave_out: ClassVar[Mapping[str, tuple[str, ...]]] = {"sparsity": (), "precision": (), "sharing": ()}
    """Per kind of method, `fnmatch` patterns of the names of modules that it does not compress."""
    zoo_name: str = ""
    """Set by `paretorch.zoo.build`, as is `zoo_options`: `build(zoo_name, **zoo_options)` is the same network."""
    zoo_options: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self.zoo_options = {}


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution without bias, since a batch norm follows or precedes it. At stride 1 it keeps the resolution."""
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)


def kaiming(module: nn.Module, mode: Literal["fan_in", "fan_out"] = "fan_in") -> None:
    """Initialise every convolution and linear layer of `module`: W ~ N(0, 2 / fan), biases 0 (He et al., 2015)."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, mode=mode, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
