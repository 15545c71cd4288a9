"""The inputs that layers really get, and modules put in the place of others."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def capture(model: nn.Module, arguments: tuple[Any, ...], layers: Iterable[nn.Module]) -> dict[nn.Module, list[Tensor]]:
    """Run the model once: for each layer the inputs of all of its calls, none if it is not reached."""
    inputs: dict[nn.Module, list[Tensor]] = {layer: [] for layer in layers}

    def keep(layer: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        one: Tensor = given[0] if given else named["input"]
        inputs[layer].append(one.detach().clone())

    handles = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in inputs]
    try:
        model(*arguments)
    finally:
        for handle in handles:
            handle.remove()
    return inputs


def replaced(model: nn.Module, swaps: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """A copy with other modules in place of some, sharing the tensors of the rest with the model."""
    shared: dict[int, Any] = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    shared |= {id(old): new for old, new in swaps.items()}
    result = copy.deepcopy(model, shared)
    for module in result.modules():
        if isinstance(module, nn.TransformerEncoderLayer) and {*module.children()} & {*swaps.values()}:
            # In eval mode torch would take the weights out of the layers and call one fused kernel, past the new ones.
            module.activation_relu_or_gelu = 0
    return result


def tensors_of(output: Any) -> list[Tensor]:
    """All tensors in an output of nested tuples, lists and mappings, in order."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, Sequence) and not isinstance(output, str):
        return [tensor for part in output for tensor in tensors_of(part)]
    return []


def difference(expected: Any, got: Any) -> float:
    """The largest difference of an element, relative to the largest element of its tensor; infinite if shapes differ."""
    pairs = list(zip(tensors_of(expected), tensors_of(got), strict=False))
    if len(tensors_of(expected)) != len(tensors_of(got)) or any(a.shape != b.shape for a, b in pairs):
        return float("inf")
    return max((_difference(a, b) for a, b in pairs if a.numel()), default=0.0)


def _difference(expected: Tensor, got: Tensor) -> float:
    wide = torch.float64 if expected.dtype == torch.float64 else torch.float32
    apart = (expected.to(wide) - got.to(wide)).abs().max()
    largest = expected.to(wide).abs().max().clamp_min(1e-12)
    ratio = float(apart / largest)
    return ratio if ratio == ratio else float("inf")
