"""Norm layers before saving: rounded to fewer bits, or folded to two vectors. Both change values only.

Folding, for a batch norm in eval mode: y = (x - m) / sqrt(v + eps) * g + b = a x + c with a = g / sqrt(v + eps) and
c = b - m a. The layer keeps its four vectors, as weight a, bias c, mean 0 and variance 1 - eps; the two constant vectors
take no bytes in the file. Outputs agree up to rounding. Further training from such a file would start from wrong statistics.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from paretorch.deploy.codec.container import require_plain_values, storage_key
from paretorch.errors import ConfigError
from paretorch.support.arithmetic import exact

_KEPT = (torch.float32, torch.bfloat16, torch.float16)
_FOLDED = {"weight", "bias", "running_mean", "running_var"}


def prepared_state(model: nn.Module, norms: torch.dtype, fold: bool) -> dict[str, Tensor]:
    """Return the state dict to store, with tied tensors still tied; the module does not change."""
    if norms not in _KEPT:
        raise ConfigError(f"norms must be torch.float32 (exact), torch.bfloat16 or torch.float16, not {norms}")
    state = dict(model.state_dict())
    if not fold and norms == torch.float32:
        return state
    require_plain_values(state)
    owners = Counter(key for module in model.modules() for key in map(storage_key, _own(module).values()))
    instead: dict[Any, Tensor] = {}
    for module in model.modules():
        # A module with children is a container, such as a block named after its norms.
        if "norm" not in type(module).__name__.lower() or module._modules:
            continue
        shaped = isinstance(module, nn.LayerNorm | nn.RMSNorm)  # their parameters may have several dimensions
        own = {
            name: tensor.detach()
            for name, tensor in _own(module).items()
            if tensor.is_floating_point() and (shaped or tensor.dim() < 2)
        }
        # Norms that share a tensor cannot be folded: each would need its own.
        alone = all(owners[storage_key(tensor)] == 1 for tensor in own.values())
        folds = fold and alone and isinstance(module, _BatchNorm) and own.keys() >= _FOLDED
        vectors = _folded(own, module) if folds else own
        for name, tensor in vectors.items():
            if bool((own[name].isfinite() & ~tensor.isfinite()).any()):
                raise ConfigError(
                    f"fold_norms=True: a {type(module).__name__} has a {name} beyond {tensor.dtype} after folding; use "
                    "fold_norms=False"
                )
            stays = norms == torch.float32 or (folds and name == "running_var")
            kept = tensor if stays else tensor.to(norms).to(tensor.dtype)
            if bool((tensor.isfinite() & ~kept.isfinite()).any()):
                raise ConfigError(
                    f"norms={norms}: a {type(module).__name__} has a {name} of {tensor.abs().max():.3g}, which it cannot hold; "
                    "use torch.bfloat16"
                )
            instead[storage_key(own[name])] = kept
    return {
        name: tensor if (key := storage_key(tensor)) is None else instead.get(key, tensor)
        for name, tensor in state.items()
    }


def _own(module: nn.Module) -> dict[str, Tensor]:
    return dict([*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)])


def _folded(tensors: dict[str, Tensor], module: Any) -> dict[str, Tensor]:
    eps: float = module.eps
    double = {name: exact(tensor) for name, tensor in tensors.items()}
    scale = double["weight"] / (double["running_var"] + eps).sqrt()
    folded = {
        "weight": scale,
        "bias": double["bias"] - double["running_mean"] * scale,
        "running_mean": torch.zeros_like(scale),
        "running_var": torch.full_like(scale, 1.0 - eps),
    }
    return {name: tensor.to(tensors[name]) for name, tensor in folded.items()}
