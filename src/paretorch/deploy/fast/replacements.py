"""Which faster layer could replace a layer, and the replacing itself.

A replacement is built only if it might pay; whether it does is measured (`optimize_model`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paretorch.deploy.fast import launch
from paretorch.deploy.fast.layers import PackedLinear, SparseLinear, SparsePointwise
from paretorch.deploy.fast.timers import Timer
from paretorch.deploy.fast.tuning import fastest_setting
from paretorch.errors import ConfigError
from paretorch.support.inputs import ModelCall

_MIN_ZEROS = 0.5
"""Below, compressed rows, which have an index for every value, are no smaller than the dense weight."""


class Replacement(NamedTuple):
    """A layer to be measured against the dense one. setting: what was chosen about it, if there was a choice."""

    kind: str
    module: nn.Module
    setting: str = ""


def could_be_replaced(module: nn.Module) -> bool:
    """Return whether this is a Linear or 1 × 1 convolution, or a subclass of one that computes something of its own.

    A subclass with a forward pass of its own is never replaced, but it is named among the choices (`why_kept`).
    """
    if not isinstance(module, nn.Linear | nn.Conv2d):
        return False
    if isinstance(module, nn.Conv2d) and not _has_own_forward(module):
        return module.kernel_size == (1, 1) and module.groups == 1 and module.padding in ((0, 0), "valid", "same")
    return True


def why_kept(module: nn.Module) -> str | None:
    """Return why a layer must stay as it is, whatever its weights; None if it may be replaced."""
    if _has_own_forward(module):
        return f"{type(module).__name__} has a forward pass of its own"
    if not {"weight", "bias"} <= module._parameters.keys():
        return "its weight or bias is computed (by a parametrization)"
    if module._forward_hooks or module._forward_pre_hooks:
        return "it has forward hooks"
    return None


def _has_own_forward(module: nn.Module) -> bool:
    """Return whether a subclass of Linear or Conv2d overrides what its base computes."""
    base: type[nn.Module] = nn.Conv2d if isinstance(module, nn.Conv2d) else nn.Linear
    computing = ("__call__", "forward", "_conv_forward")
    changed = any(getattr(type(module), name, None) is not getattr(base, name, None) for name in computing)
    return changed or "forward" in vars(module)  # which one layer alone may have


def find_replacement(layer: nn.Module, inputs: list[Tensor], timer: Timer) -> Replacement | str:
    """Return what could replace the layer, or why nothing can; the timer decides between settings of one kernel."""
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    if not inputs:
        return "the example does not reach it"
    if layer.weight.device.type == "cpu":
        return _sparse_layer(layer, inputs)
    if isinstance(layer, nn.Conv2d):
        return f"no faster convolution for {layer.weight.device.type}"
    return _packed_layer(layer, inputs, timer)


def _sparse_layer(layer: nn.Linear | nn.Conv2d, inputs: list[Tensor]) -> Replacement | str:
    weight = layer.weight
    zeros = float((weight == 0).float().mean())
    if zeros < _MIN_ZEROS:
        return f"{zeros:.0%} zeros: too few to skip"
    if weight.dtype not in (torch.float32, torch.float64) or any(x.dtype != weight.dtype for x in inputs):
        return f"{weight.dtype} has no sparse product on a CPU: use float32"
    return Replacement("csr", SparseLinear.of(layer) if isinstance(layer, nn.Linear) else SparsePointwise.of(layer))


def _packed_layer(layer: nn.Linear, inputs: list[Tensor], timer: Timer) -> Replacement | str:
    device = layer.weight.device
    if not launch.runs_on(device):
        return f"no faster kernel for {device.type}" + (" without triton" if device.type == "cuda" else "")
    if any(x.dtype != torch.bfloat16 for x in inputs):
        return "its input is not bfloat16"
    rows = max(x.numel() // x.shape[-1] for x in inputs)
    if rows > launch.LARGEST_BATCH:
        return f"{rows} rows of input: packed weights pay up to {launch.LARGEST_BATCH}"
    try:
        packed = PackedLinear.of(layer)
        found = fastest_setting(packed, max(inputs, key=Tensor.numel), timer)
        if found.setting.tile != packed.packed.tile:
            packed = PackedLinear.of(layer, found.setting.tile)
    except ConfigError as error:
        return str(error)
    packed.tuning = found.setting.tuning
    return Replacement("packed", packed, f"{found.setting}: the best of {found.tried}")


def capture_inputs(model: nn.Module, call: ModelCall, layers: Iterable[nn.Module]) -> dict[nn.Module, list[Tensor]]:
    """Run the model once and return, for each layer, the inputs of all of its calls; none if it is not reached."""
    inputs: dict[nn.Module, list[Tensor]] = {layer: [] for layer in layers}

    def record(layer: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        one: Tensor = given[0] if given else named["input"]
        inputs[layer].append(one.detach().clone())

    handles = [layer.register_forward_pre_hook(record, with_kwargs=True) for layer in inputs]
    try:
        call(model)
    finally:
        for handle in handles:
            handle.remove()
    return inputs


def replace_modules(model: nn.Module, swaps: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Return a copy with some modules replaced; it shares the tensors of the others with the model."""
    shared: dict[int, Any] = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    shared |= {id(old): new for old, new in swaps.items()}
    result = copy.deepcopy(model, shared)
    for module in result.modules():
        if isinstance(module, nn.TransformerEncoderLayer) and {*module.children()} & {*swaps.values()}:
            # In eval mode torch would read the layers' weights and call one fused kernel, bypassing the new layers.
            module.activation_relu_or_gelu = 0
    return result
