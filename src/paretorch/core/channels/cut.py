"""Taking channels out of plain modules. One edit says which channels of which modules stay:

{"kind": "keep_channels", "keep": hexadecimal digits, "size": channels before, "out": modules, "in": modules}

Bit c of the number `keep` is 1 where channel c stays. `out` lists modules that make these channels (norms and learned
slopes among them), `in` those that read them. A group norm loses whole groups. Edits are made by a plan and come back
from files, so everything is checked.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.errors import ConfigError

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORMS = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
)  # fmt: skip


def channel_edits(cuts: Sequence[tuple[str, str, Tensor]]) -> list[dict[str, Any]]:
    """Edits for (module, side, kept channels); modules whose channels stay alike share one."""
    edits: dict[tuple[str, int], dict[str, Any]] = {}
    for module, side, keep in cuts:
        bits = sum(1 << c for c in keep.nonzero().flatten().tolist())
        key = (f"{bits:x}", len(keep))
        new = {"kind": "keep_channels", "keep": key[0], "size": key[1], "out": [], "in": []}
        edits.setdefault(key, new)[side].append(module)
    return list(edits.values())


def keep_channels(model: nn.Module, edit: Mapping[str, Any]) -> None:
    """Cut the modules of one edit, in place."""
    for side, name, keep in _sides(edit):
        module = _module(model, name)
        for attribute, axis, kept in _places(module, name, side, keep):
            _replace(getattr(module, attribute), axis, kept)
        _resize(module, side, keep)


def _replace(tensor: Tensor, axis: int, keep: Tensor) -> None:
    """Cut a tensor in place: the object stays, its gradient goes.

    While some output or loss of before is alive, torch goes on expecting gradients of the old shape; data of another
    dtype in between make it forget that.
    """
    left = _select(tensor.data, axis, keep)
    tensor.grad = None
    tensor.data = left.new_empty(0, dtype=torch.float16 if left.dtype == torch.float64 else torch.float64)
    tensor.data = left


def cut_state(state: Mapping[str, Tensor], model: nn.Module, edits: Iterable[Mapping[str, Any]]) -> dict[str, Tensor]:
    """The state of a model after edits that were not made on it."""
    cut = dict(state)
    for edit in edits:
        for side, name, keep in _sides(edit):
            for attribute, axis, kept in _places(_module(model, name), name, side, keep):
                key = f"{name}.{attribute}" if name else attribute
                cut[key] = _select(cut[key], axis, kept)
    return cut


def _sides(edit: Mapping[str, Any]) -> Iterator[tuple[str, str, Tensor]]:
    bits, size = int(edit["keep"], 16), edit["size"]
    if bits >> size or not bits:
        raise ConfigError(f"an edit keeps {bits.bit_count()} of {size} channels")
    keep = torch.tensor([bool(bits >> c & 1) for c in range(size)], dtype=torch.bool)
    for side in ("out", "in"):
        for name in edit[side]:
            yield side, name, keep


def _module(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        raise ConfigError(f"an edit names {name!r}, which {type(model).__name__} does not have") from None


def _places(module: Any, name: str, side: str, keep: Tensor) -> list[tuple[str, int, Tensor]]:
    """Which tensors of a module lose what on one side: attribute, axis, what stays along it."""
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
            raise ConfigError(f"an edit takes a part of a group of {name!r}, and with it the statistics of the rest")
        places = [("weight", 0, keep), ("bias", 0, keep)]
    elif isinstance(module, nn.PReLU) and out:
        _expect(name, side, keep, module.num_parameters)
        places = [("weight", 0, keep)]
    elif isinstance(module, _CONVS):
        _expect(name, side, keep, module.out_channels if out else module.in_channels)
        transposed = isinstance(module, _TRANSPOSED)
        if _is_depthwise(module) and not out:
            raise ConfigError(f"an edit cuts the inputs of {name!r}, which go with its outputs")
        rows = keep.view(module.groups, -1)
        _alike(rows.T if _loses_groups(module, keep) else rows, name)
        # The weight has all channels of one side, and those of one group of the other.
        own = keep if out != transposed else keep.view(module.groups, -1)[0]
        places = [("weight", int(out == transposed), own)] + ([("bias", 0, keep)] if out else [])
    else:
        raise ConfigError(f"an edit cuts the {side} side of {name!r}, a {type(module).__name__}, which cannot be cut")
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
    """Whether the outputs that go take whole groups with them: those of a depthwise convolution.

    Not of one that has a single input a group left, since its inputs were cut before: every group loses the same outputs.
    """
    rows = keep.view(module.groups, -1)
    return _is_depthwise(module) and not torch.equal(rows.all(0), rows.any(0))


def _alike(rows: Tensor, name: str) -> None:
    """The same channels stay in every group (of a depthwise convolution: with every input all its outputs)."""
    if not torch.equal(rows.all(0), rows.any(0)):
        raise ConfigError(f"an edit takes different channels from the groups of {name!r}")


def _expect(name: str, side: str, keep: Tensor, count: int) -> None:
    if len(keep) != count:
        raise ConfigError(f"an edit is for {len(keep)} channels, but {name!r} has {count} on its {side} side")


def _select(tensor: Tensor, axis: int, keep: Tensor) -> Tensor:
    return tensor.index_select(axis, keep.nonzero().flatten().to(tensor.device))
