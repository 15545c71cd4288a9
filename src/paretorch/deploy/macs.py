"""Multiply-adds of one example. 1 MAC = one multiplication and its addition; convolutions and linear layers count.

Norms, activations, attention products and recurrent layers do not count. Nothing of the module changes: it is run in
eval mode with hooks that are gone afterwards.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from paretorch.errors import ConfigError


def count_macs(model: nn.Module, example: Tensor) -> dict[str, int]:
    """Module name -> MACs for the first example of the batch, in order of the modules. A reused module counts each run."""
    found: dict[str, int] = {}
    handles = []
    training = {module: module.training for module in model.modules()}
    try:
        for name, module in model.named_modules():
            if isinstance(module, _ConvNd | nn.Linear):
                found[name] = 0
                handles.append(module.register_forward_hook(_counter(name, found)))
        model.eval()
        parameter = next(model.parameters(), None)
        with torch.no_grad():
            model(example[:1] if parameter is None else example[:1].to(parameter.device))
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"the example of shape {tuple(example.shape)} does not run: {error}") from error
    finally:
        for handle in handles:
            handle.remove()
        for module, flag in training.items():
            module.training = flag
    return found


def _counter(name: str, found: dict[str, int]) -> Any:
    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, nn.Linear):
            found[name] += output.numel() * module.in_features
        elif isinstance(module, _ConvTransposeNd):
            found[name] += inputs[0].numel() * module.out_channels // module.groups * math.prod(module.kernel_size)
        elif isinstance(module, _ConvNd):
            found[name] += output.numel() * module.in_channels // module.groups * math.prod(module.kernel_size)

    return hook
