"""What all zoo networks share: their recipe's exceptions, their name, and Kaiming initialisation."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from torch import nn


class Network(nn.Module):
    """A module that knows which of its layers a recipe leaves out, and how to build it again.

    `leave_out[method]` holds `fnmatch` patterns of module names, for the methods "sparsity", "precision" and "sharing".
    `zoo_name` and `zoo_options` are set by `paretorch.zoo.build`: `build(zoo_name, **zoo_options)` is the same network.
    """

    leave_out: ClassVar[Mapping[str, tuple[str, ...]]] = {"sparsity": (), "precision": (), "sharing": ()}
    zoo_name: str = ""
    zoo_options: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self.zoo_options = {}


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution that keeps the resolution at stride 1, without bias: a batch norm stands beside it."""
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)


def kaiming(module: nn.Module, mode: Literal["fan_in", "fan_out"] = "fan_in") -> None:
    """Kaiming initialisation of every convolution and matrix in `module`: W ~ N(0, 2 / fan), biases 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, mode=mode, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
