"""The edit that removes channels from plain modules, and lists of such edits. A group norm loses whole groups.

A plan makes edits and files store them, so everything is checked.
"""

import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from paretorch.edits.edit import Edit, ModelInfo, find_module
from paretorch.errors import ArtefactError, ConfigError

_MAX_CHANNELS = 2**20
_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORMS = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
)  # fmt: skip


@dataclass(frozen=True)
class KeepChannels(Edit):
    """Keep some of the channels that some modules make and others read.

    Args:
        keep: A number in hexadecimal digits. Channel c stays if bit c is 1.
        size: The number of channels before.
        outputs: The names of the modules that make these channels, including norms and learned slopes.
        inputs: The names of the modules that read them.
    """

    keep: str
    size: int
    outputs: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()

    kind: ClassVar[str] = "keep_channels"
    json_fields: ClassVar[Mapping[str, type]] = {"keep": str, "size": int, "out": list, "in": list}

    @classmethod
    def check_json(cls, data: Mapping[str, Any]) -> None:
        # An edit takes at least one channel from at least one module, so a model bounds the number of edits.
        digits, size, names = data["keep"], data["size"], [*data["out"], *data["in"]]
        sound = (
            0 < size <= _MAX_CHANNELS
            and 0 < len(digits) <= size // 4 + 1
            and set(digits) <= set(string.hexdigits)
            and int(digits, 16) != (1 << size) - 1
            and len(names) > 0
            and all(isinstance(name, str) for name in names)
        )
        if not sound:
            raise ArtefactError("A 'keep_channels' edit is damaged")

    def mask(self) -> Tensor:
        """Return for each channel whether it stays."""
        bits = int(self.keep, 16)
        if bits >> self.size or not bits:
            raise ConfigError(f"An edit keeps {bits.bit_count()} of {self.size} channels")
        return torch.tensor([digit == "1" for digit in reversed(f"{bits:0{self.size}b}")], dtype=torch.bool)

    def check(self, info: ModelInfo) -> None:
        # Checked first: masks of a forged size would take long.
        if self.size > info.widest:
            raise ConfigError(
                f"An edit is for {self.size} channels, more than any layer of {type(info.model).__name__} has"
            )
        for cut in self._cuts(info.model):
            cut.places()

    def apply(self, model: nn.Module) -> None:
        for cut in self._cuts(model):
            for attribute, axis, kept in cut.places():
                _replace(getattr(cut.module, attribute), axis, kept)
            _resize(cut.module, cut.side, cut.keep)

    def renamed(self, name: Callable[[str], str]) -> Self:
        return replace(self, outputs=tuple(map(name, self.outputs)), inputs=tuple(map(name, self.inputs)))

    def cut_state(self, state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
        """Return the state that a model would have after the edit; the model does not change."""
        left = dict(state)
        for cut in self._cuts(model):
            for attribute, axis, kept in cut.places():
                key = f"{cut.name}.{attribute}" if cut.name else attribute
                left[key] = _select(left[key], axis, kept)
        return left

    def _cuts(self, model: nn.Module) -> Iterator["_Cut"]:
        keep = self.mask()
        for side, names in (("out", self.outputs), ("in", self.inputs)):
            for name in names:
                yield _Cut(find_module(model, name), name, side, keep)


class _Cut(NamedTuple):
    """One module and the side of it that loses channels."""

    module: nn.Module
    name: str
    side: str
    keep: Tensor

    def places(self) -> list[tuple[str, int, Tensor]]:
        return _places(self.module, self.name, self.side, self.keep)


def _replace(tensor: Tensor, axis: int, keep: Tensor) -> None:
    """Cut a tensor in place and drop its gradient.

    As long as an earlier output or loss is alive, torch expects gradients of the old shape. Assigning data of another dtype
    in between resets that.
    """
    left = _select(tensor.data, axis, keep)
    tensor.grad = None
    tensor.data = left.new_empty(0, dtype=torch.float32 if left.dtype == torch.float16 else torch.float16)
    tensor.data = left


def _places(module: Any, name: str, side: str, keep: Tensor) -> list[tuple[str, int, Tensor]]:
    """Return which tensors of a module are cut on one side: attribute, axis, and what stays along it."""
    out = side == "out"
    if isinstance(module, nn.Linear):
        _expect(name, side, keep, module.out_features if out else module.in_features)
        places = [("weight", 0, keep), ("bias", 0, keep)] if out else [("weight", 1, keep)]
    elif isinstance(module, _NORMS) and out:
        _expect(name, side, keep, module.num_features)
        places = [(one, 0, keep) for one in ("weight", "bias", "running_mean", "running_var")]
    elif isinstance(module, nn.GroupNorm) and out:
        _expect(name, side, keep, module.num_channels)
        rows = keep.view(module.num_groups, -1)
        if not torch.equal(rows.all(1), rows.any(1)):
            raise ConfigError(
                f"An edit removes a part of a group of {name!r}, which changes the statistics of the rest"
            )
        places = [("weight", 0, keep), ("bias", 0, keep)]
    elif isinstance(module, nn.PReLU) and out:
        _expect(name, side, keep, module.num_parameters)
        places = [("weight", 0, keep)]
    elif isinstance(module, _CONVS):
        _expect(name, side, keep, module.out_channels if out else module.in_channels)
        transposed = isinstance(module, _TRANSPOSED)
        if _is_depthwise(module) and not out:
            raise ConfigError(f"An edit cuts the inputs of {name!r}, which are cut together with its outputs")
        rows = keep.view(module.groups, -1)
        _alike(rows.T if _loses_groups(module, keep) else rows, name)
        # The weight has all channels of one side, and those of one group of the other.
        own = keep if out != transposed else keep.view(module.groups, -1)[0]
        places = [("weight", int(out == transposed), own)] + ([("bias", 0, keep)] if out else [])
    else:
        raise ConfigError(f"An edit cuts the {side} side of {name!r}, a {type(module).__name__}, which cannot be cut")
    return [place for place in places if getattr(module, place[0]) is not None]


def _resize(module: Any, side: str, keep: Tensor) -> None:
    left = int(keep.sum())
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, _NORMS):
        module.num_features = left
    elif isinstance(module, nn.GroupNorm):
        module.num_groups = left * module.num_groups // module.num_channels
        module.num_channels = left
    elif isinstance(module, nn.PReLU):
        module.num_parameters = left
    elif side == "in":
        module.in_channels = left
    else:
        if _loses_groups(module, keep):
            module.groups = module.in_channels = left * module.groups // module.out_channels
        module.out_channels = left


def _is_depthwise(module: Any) -> bool:
    return not isinstance(module, _TRANSPOSED) and module.groups == module.in_channels > 1


def _loses_groups(module: Any, keep: Tensor) -> bool:
    """Return whether removed outputs remove whole groups, as in a depthwise convolution.

    If every group loses the same outputs, groups stay: the convolution has one input per group because its inputs were cut
    before.
    """
    rows = keep.view(module.groups, -1)
    return _is_depthwise(module) and not torch.equal(rows.all(0), rows.any(0))


def _alike(rows: Tensor, name: str) -> None:
    """Raise unless the same channels stay in every group (in a depthwise convolution: all or no outputs of an input)."""
    if not torch.equal(rows.all(0), rows.any(0)):
        raise ConfigError(f"An edit removes different channels from the groups of {name!r}")


def _expect(name: str, side: str, keep: Tensor, count: int) -> None:
    if len(keep) != count:
        raise ConfigError(f"An edit is for {len(keep)} channels, but {name!r} has {count} on its {side} side")


def _select(tensor: Tensor, axis: int, keep: Tensor) -> Tensor:
    return tensor.index_select(axis, keep.nonzero().flatten().to(tensor.device))


def channel_edits(cuts: Sequence[tuple[str, str, Tensor]]) -> list[KeepChannels]:
    """Edits for (module, side, kept channels), side "out" or "in"; modules that keep the same channels share one."""
    sides: dict[tuple[str, int], dict[str, list[str]]] = {}
    for module, side, keep in cuts:
        bits = sum(1 << c for c in keep.nonzero().flatten().tolist())
        sides.setdefault((f"{bits:x}", len(keep)), {"out": [], "in": []})[side].append(module)
    return [KeepChannels(*key, tuple(own["out"]), tuple(own["in"])) for key, own in sides.items()]


def cut_state(state: Mapping[str, Tensor], model: nn.Module, edits: Iterable[KeepChannels]) -> dict[str, Tensor]:
    """The state of a model after edits that were not made on it."""
    cut = dict(state)
    for edit in edits:
        cut = edit.cut_state(cut, model)
    return cut
