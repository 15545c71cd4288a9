"""Which layers of a network may hold packed weights, the layer that takes a layer's place, and the swap.

Candidates are Linear layers, Conv1D of transformers, embeddings and large convolutions, in fp32, whose forward pass is their own. A weight that
several layers share is packed once, if all of them can.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from paretorch.core.attach.sites import is_conv1d
from paretorch.deploy.codec.integers import Integers
from paretorch.deploy.packed.few_bits import FewBits, pack
from paretorch.deploy.packed.layers import FewBitConv2d, FewBitEmbedding, FewBitLayer, FewBitLinear

_LEAST_CONVOLUTION = 1 << 14
"""Weights: smaller ones are unpacked for each call, and save too little memory for that."""
_WORTH = 0.5
"""Bytes of a packed weight, relative to the dense one, at most."""


def find_packable(model: nn.Module) -> dict[str, list[nn.Module]]:
    """Return the layers that hold each weight that may be packed, by the name of the weight in the state dict."""
    owners: dict[int, list[tuple[str, nn.Module, str]]] = {}
    for path, module in model.named_modules():
        for name, tensor in module._parameters.items():
            if tensor is not None:
                owners.setdefault(id(tensor), []).append((f"{path}.{name}".lstrip("."), module, name))
    inside = {
        child for module in model.modules() if isinstance(module, nn.MultiheadAttention) for child in module.children()
    }
    found: dict[str, list[nn.Module]] = {}
    for own in owners.values():
        if all(name == "weight" and module not in inside and _can_hold(module) for _, module, name in own):
            modules = [module for _, module, _ in own]
            found |= {path: modules for path, _, _ in own}
    return found


def _can_hold(module: nn.Module) -> bool:
    weight = module._parameters.get("weight")
    if weight is None or weight.dtype != torch.float32 or weight.device.type not in ("cpu", "meta"):
        return False
    if isinstance(module, nn.Embedding):
        return type(module).forward is nn.Embedding.forward and module.max_norm is None and not module._forward_hooks
    if is_conv1d(module):
        return not (module._forward_hooks or module._forward_pre_hooks)
    if isinstance(module, nn.Conv2d):
        return weight.numel() >= _LEAST_CONVOLUTION and why_kept(module) is None
    return isinstance(module, nn.Linear) and why_kept(module) is None


def why_kept(module: nn.Module) -> str | None:
    """Return why a layer must stay, whatever its weights; None if it may be replaced."""
    if has_own_forward(module):
        return f"{type(module).__name__} has a forward pass of its own"
    if not {"weight", "bias"} <= module._parameters.keys():
        return "its weight or bias is computed (by a parametrization)"
    if module._forward_hooks or module._forward_pre_hooks:
        return "it has forward hooks"
    return None


def has_own_forward(module: nn.Module) -> bool:
    """Return whether a subclass of Linear or Conv2d overrides what its base computes."""
    base: type[nn.Module] = nn.Conv2d if isinstance(module, nn.Conv2d) else nn.Linear
    computing = ("__call__", "forward", "_conv_forward")
    changed = any(getattr(type(module), name, None) is not getattr(base, name, None) for name in computing)
    return changed or "forward" in vars(module)  # which a single layer may have


def pack_for(module: nn.Module, weight: Integers) -> FewBits | None:
    """Return the packed weight of a layer; None if it has too many bits, or takes too many bytes."""
    if is_conv1d(module):
        if weight.steps.shape[1] > 1 or (weight.steps != weight.steps[0]).any():
            return None  # its outputs are columns, and these steps are not theirs
        steps = weight.steps[:1].repeat(weight.numbers.shape[1], axis=0)
        weight = Integers(weight.numbers.T, steps, weight.numbers.shape[0])
    packed = pack(weight)
    return packed if packed is not None and packed.bytes <= _WORTH * 4 * weight.numbers.size else None


def packed_layer(module: nn.Module, weight: FewBits) -> FewBitLayer:
    """Return the layer that computes the same with a packed weight."""
    if isinstance(module, nn.Embedding):
        return FewBitEmbedding(weight)
    if isinstance(module, nn.Conv2d):
        return FewBitConv2d(weight, module)
    bias = module._parameters.get("bias")
    return FewBitLinear(weight, bias)


def swap_modules(model: nn.Module, swaps: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Put modules in the places of others, in place, and return the model: the new one if it is itself among them."""
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if child is not None and child in swaps:
                module._modules[name] = swaps[child]
    leave_fused_paths(model, swaps)
    return swaps.get(model, model)


def leave_fused_paths(model: nn.Module, swaps: Mapping[nn.Module, nn.Module]) -> None:
    """Make encoder layers call the modules that were put into them.

    Else, in eval mode, torch would read their weights and call a fused kernel in their place.
    """
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer) and {*module.children()} & {*swaps.values()}:
            module.activation_relu_or_gelu = 0
