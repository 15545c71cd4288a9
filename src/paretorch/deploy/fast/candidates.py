"""What could stand in place of a layer: built only where it might pay; whether it does is measured."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from paretorch.deploy.fast import launch as _launch
from paretorch.deploy.fast.measure import Timer
from paretorch.deploy.fast.packed_linear import PackedLinear
from paretorch.deploy.fast.sparse import SparseLinear, SparsePointwise
from paretorch.deploy.fast.tuning import tuned
from paretorch.errors import ConfigError

_FEWEST_ZEROS = 0.5
"""Below, compressed rows, which have an index for every value, are no smaller than the dense weight."""


class Candidate(NamedTuple):
    """To be measured. how: what was chosen about it, if there was a choice."""

    kind: str
    module: nn.Module
    how: str = ""


def is_layer(module: nn.Module) -> bool:
    """A plain Linear or 1 × 1 convolution: subclasses, parametrised ones and those with hooks may do something else."""
    if module._forward_hooks or module._forward_pre_hooks:
        return False
    if type(module) is nn.Conv2d:
        return module.kernel_size == (1, 1) and module.groups == 1 and module.padding in ((0, 0), "valid", "same")
    return type(module) is nn.Linear


def candidate(layer: nn.Module, inputs: list[Tensor], timer: Timer) -> Candidate | str:
    """What could take the layer's place, or why nothing can; the timer decides between settings of the same."""
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    if not inputs:
        return "the example does not reach it"
    if layer.weight.device.type == "cpu":
        return _without_zeros(layer, inputs)
    if isinstance(layer, nn.Conv2d):
        return f"no faster convolution for {layer.weight.device.type}"
    return _with_fewer_bits(layer, inputs, timer)


def _without_zeros(layer: nn.Linear | nn.Conv2d, inputs: list[Tensor]) -> Candidate | str:
    weight = layer.weight
    zeros = float((weight == 0).float().mean())
    if zeros < _FEWEST_ZEROS:
        return f"{zeros:.0%} zeros: too few to skip"
    if weight.dtype not in (torch.float32, torch.float64) or any(x.dtype != weight.dtype for x in inputs):
        return f"{weight.dtype} has no sparse product on a CPU: use float32"
    return Candidate("csr", SparseLinear.of(layer) if isinstance(layer, nn.Linear) else SparsePointwise.of(layer))


def _with_fewer_bits(layer: nn.Linear, inputs: list[Tensor], timer: Timer) -> Candidate | str:
    device = layer.weight.device
    if not _launch.runs_on(device):
        return f"no faster kernel for {device.type}" + (" without triton" if device.type == "cuda" else "")
    if any(x.dtype != torch.bfloat16 for x in inputs):
        return "its input is not bfloat16"
    rows = max(x.numel() // x.shape[-1] for x in inputs)
    if rows > _launch.LARGEST_BATCH:
        return f"{rows} rows of input: packed weights pay up to {_launch.LARGEST_BATCH}"
    try:
        packed = PackedLinear.of(layer)
        found = tuned(packed, max(inputs, key=Tensor.numel), timer)
        if found.setting.tile != packed.packed.tile:
            packed = PackedLinear.of(layer, found.setting.tile)
    except ConfigError as error:
        return str(error)
    packed.tuning = found.setting.tuning
    return Candidate("packed", packed, f"{found.setting}: the best of {found.tried}")
