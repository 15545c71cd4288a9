"""The networks, one file per family, and what all have in common: which layers a method leaves out, the name, and the start.

`build` makes one by name. A network keeps its name and options, so that it can be built again from an artefact.
"""

import difflib
import importlib
import inspect
import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from torch import nn

from paretorch.errors import ConfigError


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


class _Entry(NamedTuple):
    """Where the class of a network is. The module is imported only if the network is built."""

    module: str
    cls: str
    fixed: dict[str, Any] = {}  # noqa: RUF012 - never changed


_ENTRIES = {
    "resnet20": _Entry("resnet", "CifarResNet", {"depth": 20}),
    "resnet32": _Entry("resnet", "CifarResNet", {"depth": 32}),
    "resnet56": _Entry("resnet", "CifarResNet", {"depth": 56}),
    "vgg16": _Entry("plain", "VGG16"),
    "conv6": _Entry("plain", "Conv6"),
    "mobilenetv2": _Entry("mobile", "MobileNetV2"),
    "shufflenet": _Entry("mobile", "ShuffleNet"),
    "dcgan-generator": _Entry("dcgan", "Generator"),
    "dcgan-discriminator": _Entry("dcgan", "Discriminator"),
    "transformer": _Entry("transformer", "Transformer"),
    "resnet18": _Entry("resnet", "ImageNetResNet", {"depth": 18, "widen": 1}),
    "resnet50": _Entry("resnet", "ImageNetResNet", {"depth": 50, "widen": 1}),
    "wrn-50-2": _Entry("resnet", "ImageNetResNet", {"depth": 50, "widen": 2}),
    "swrn-50-2": _Entry("resnet", "ImageNetSWRN", {"widen": 2}),
    "shortest-paths-cnn": _Entry("plain", "ShortestPathsCNN"),
    "shortest-paths-scnn": _Entry("plain", "ShortestPathsSCNN"),
    "digits-cnn": _Entry("plain", "DigitsCNN"),
}
# Names that contain numbers: the groups of the pattern are options.
_FAMILIES = {
    r"wrn-(?P<depth>\d+)-(?P<widen>\d+)": _Entry("resnet", "WideResNet"),
    r"swrn-(?P<depth>\d+)-(?P<widen>\d+)": _Entry("resnet", "SWRN"),
    r"swrn-(?P<depth>\d+)-(?P<widen>\d+)-(?P<templates>\d+)": _Entry("resnet", "SWRN"),
    r"lstm-(?P<units>\d+)": _Entry("lstm", "LanguageModel"),
}
_SHARING = ("SWRN", "ImageNetSWRN", "ShortestPathsSCNN")
_EXAMPLES = ("wrn-28-10", "wrn-28-4", "swrn-28-10-2", "swrn-28-4-2", "lstm-300", "lstm-1000")


def names() -> tuple[str, ...]:
    """The names that `build` accepts. Of "wrn-D-K", "swrn-D-W-K" and "lstm-N", which take any numbers, those of the thesis."""
    return tuple(sorted((*_ENTRIES, *_EXAMPLES)))


def build(name: str, **options: Any) -> Network:
    """Build a network with new random weights.

    The module has `zoo_name` and `zoo_options`: `build(module.zoo_name, **module.zoo_options)` has the same architecture.

    Args:
        name: one of `names()`.
        options: of the class of the network, as plain JSON values.

    Example:
        >>> from paretorch import zoo
        >>> model = zoo.build("resnet20", classes=100)
        >>> model.zoo_name, model.zoo_options
        ('resnet20', {'classes': 100})
    """
    entry = _find(name)
    cls: type[Network] = getattr(importlib.import_module(f"paretorch.zoo.networks.{entry.module}"), entry.cls)
    accepted = [option for option in inspect.signature(cls).parameters if option not in entry.fixed]
    for option in options:
        if option not in accepted:
            raise ConfigError(f"The network {name!r} has no option {option!r}; it has: {', '.join(accepted)}")
    try:
        kept: dict[str, Any] = json.loads(json.dumps(options))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"Options of the network {name!r} must be plain numbers, strings or lists: {error}"
        ) from error
    try:
        module = cls(**entry.fixed, **options)
    except ConfigError:
        raise
    except (TypeError, ValueError, RuntimeError, ZeroDivisionError) as error:  # torch's errors for impossible sizes
        raise ConfigError(f"The network {name!r} cannot be built with {options}: {error}") from error
    module.zoo_name = name
    module.zoo_options = kept
    return module


def shares(name: str) -> bool:
    """Whether the layers of this network share templates, as in "swrn-28-10-2"."""
    try:
        return _find(name).cls in _SHARING
    except ConfigError:
        return False


def _find(name: str) -> _Entry:
    if name in _ENTRIES:
        return _ENTRIES[name]
    for pattern, entry in _FAMILIES.items():
        if match := re.fullmatch(pattern, name):
            return entry._replace(fixed=entry.fixed | {key: int(value) for key, value in match.groupdict().items()})
    close = difflib.get_close_matches(name, names(), n=3, cutoff=0.5) or names()
    raise ConfigError(f"There is no network {name!r} in the zoo; did you mean one of: {', '.join(close)}?")
