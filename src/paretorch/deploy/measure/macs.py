"""Multiply-adds of one example. 1 MAC = one multiplication and its addition; convolutions and linear layers count.

The projections of torch's attention are linear layers, and so is the Conv1D of transformers; the products of attention, norms,
activations and recurrent layers do not count. The module is not changed: it is run in eval mode, with temporary hooks.
"""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from paretorch.core.attach.sites import is_conv1d
from paretorch.support.eval_mode import Hook, run_example, watched
from paretorch.support.inputs import Example, read_example


def count_macs(model: nn.Module, example: Example) -> dict[str, int]:
    """Return MACs for the first example of the batch, by module name. A module that runs several times counts each run."""
    kinds = _ConvNd | nn.Linear | nn.MultiheadAttention
    counted = {m: name for name, m in model.named_modules() if isinstance(m, kinds) or is_conv1d(m)}
    found = dict.fromkeys(counted.values(), 0)
    call = read_example(example)
    with watched(model, {module: _counter(name, found) for module, name in counted.items()}):
        run_example(model, call.first())
    return found


def _counter(name: str, found: dict[str, int]) -> Hook:
    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, nn.MultiheadAttention):  # which never calls the Linear that it holds
            one = module.embed_dim
            found[name] += sum(given.numel() for given in inputs[:3]) * one
            found[f"{name}.out_proj" if name else "out_proj"] += inputs[0].numel() * one if inputs else 0
        elif isinstance(module, nn.Linear):
            found[name] += output.numel() * module.in_features
        elif isinstance(module, _ConvTransposeNd):
            found[name] += inputs[0].numel() * module.out_channels // module.groups * math.prod(module.kernel_size)
        elif isinstance(module, _ConvNd):
            found[name] += output.numel() * module.in_channels // module.groups * math.prod(module.kernel_size)
        else:  # a Conv1D
            found[name] += output.numel() * inputs[0].shape[-1]

    return hook
