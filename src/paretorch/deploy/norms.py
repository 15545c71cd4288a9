"""Norm layers before saving: rounded to fewer bits, or folded to two vectors. Both are changes of values, nothing else.

Folding, for a batch norm in eval mode: y = (x - m) / sqrt(v + eps) * g + b = a x + c with a = g / sqrt(v + eps) and
c = b - m a. The layer keeps its four vectors, as weight a, bias c, mean 0 and variance 1 - eps; the two constant ones cost
nothing in the file. Outputs agree up to rounding; training further from such a file would start from wrong statistics.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from paretorch.errors import ConfigError

_KEPT = (torch.float32, torch.bfloat16, torch.float16)


def prepared_state(model: nn.Module, norms: torch.dtype, fold: bool) -> dict[str, Tensor]:
    """The state dict as it is to be stored; the module itself is not touched."""
    if norms not in _KEPT:
        raise ConfigError(f"norms must be torch.float32 (exact), torch.bfloat16 or torch.float16, not {norms}")
    state = dict(model.state_dict())
    for prefix, module in model.named_modules():
        if "norm" not in type(module).__name__.lower():
            continue
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        tensors = {name: tensor.detach() for name, tensor in own if tensor.is_floating_point()}
        if (
            fold
            and isinstance(module, _BatchNorm)
            and {"weight", "bias", "running_mean", "running_var"} <= set(tensors)
        ):
            tensors = _folded(tensors, module.eps)
        for name, tensor in tensors.items():
            key = f"{prefix}.{name}" if prefix else name
            if key in state and (fold or norms != torch.float32):
                state[key] = (
                    tensor
                    if norms == torch.float32
                    else _rounded(tensor, norms, constant=name == "running_var" and fold)
                )
    return state


def _folded(tensors: dict[str, Tensor], eps: float) -> dict[str, Tensor]:
    double = {name: tensor.double() for name, tensor in tensors.items()}
    scale = double["weight"] / (double["running_var"] + eps).sqrt()
    folded = {
        "weight": scale,
        "bias": double["bias"] - double["running_mean"] * scale,
        "running_mean": torch.zeros_like(scale),
        "running_var": torch.full_like(scale, 1.0 - eps),
    }
    return {name: tensor.to(tensors[name].dtype) for name, tensor in folded.items()}


def _rounded(tensor: Tensor, dtype: torch.dtype, constant: bool) -> Tensor:
    return tensor if constant else tensor.to(dtype).to(tensor.dtype)
