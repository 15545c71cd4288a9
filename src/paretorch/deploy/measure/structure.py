"""What a report counts of a network's structure: multiply-adds, quantized activations, layers that share tensors.

1 MAC is one multiplication and its addition. Convolutions and linear layers count, including the projections of torch's
attention and the Conv1D of transformers. The products of attention, norms, activations and recurrent layers do not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from paretorch.core.attach.sites import is_conv1d
from paretorch.deploy.codec.container import storage_key
from paretorch.edits import Edit, KeepChannels, QuantizedActivation, Share
from paretorch.support.eval_mode import Hook, run_example, watched
from paretorch.support.inputs import Example, read_example

_WEIGHTS = ("weight", "in_proj_weight", "q_proj_weight")  # the last two are torch's attention
MACS = "1 MAC is one multiplication and its addition, in convolutions and linear layers, for one example"


def built_share(edits: Iterable[Edit]) -> dict[str, Fraction]:
    """Return, by layer that lost channels, how many times as many weights it had as the network was built."""
    found: dict[str, Fraction] = {}
    for edit in edits:
        if isinstance(edit, KeepChannels):
            share = Fraction(edit.size, int(edit.keep, 16).bit_count())
            for name in (*edit.outputs, *edit.inputs):
                found[name] = found.get(name, Fraction(1)) * share
    return found


@dataclass(frozen=True)
class Activation:
    """A quantized activation: mean bits of its groups, number of groups by bits, and range."""

    name: str
    bits: float
    groups: Mapping[int, int]
    low: float
    high: float


@dataclass(frozen=True)
class Shared:
    """Layers that are mixed from shared tensors.

    Args:
        layers: The names of the layers.
        stored: The names of the tensors.
        uses: For each layer, the numbers of the tensors that it is mixed from.
    """

    layers: tuple[str, ...]
    stored: tuple[str, ...]
    uses: tuple[tuple[int, ...], ...]

    @property
    def runs(self) -> tuple[int, ...]:
        """The tensor that each layer is, 1, 2 … in the order in which they first run; empty if some layer mixes several."""
        if any(len(own) != 1 for own in self.uses):
            return ()
        order = list(dict.fromkeys(own[0] for own in self.uses))
        return tuple(order.index(own[0]) + 1 for own in self.uses)


def activations_of(model: nn.Module) -> tuple[Activation, ...]:
    """Return the quantized activations of a plain network, in its order."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, QuantizedActivation):
            bits, counts = torch.unique(module.bits, return_counts=True)
            groups = dict(zip(bits.tolist(), counts.tolist(), strict=True))
            mean = sum(p * count for p, count in groups.items()) / max(sum(groups.values()), 1)
            low, high = module.bounds.tolist()
            found.append(Activation(name, mean, groups, low, high))
    return tuple(found)


def shared_of(edits: Iterable[Edit]) -> tuple[Shared, ...]:
    """Return the groups of layers that share tensors, from a network's structural edits."""
    return tuple(Shared(edit.weights, edit.stored, edit.uses) for edit in edits if isinstance(edit, Share))


def count_macs(model: nn.Module, example: Example) -> dict[str, int]:
    """Return MACs for the first example of the batch, by module name. Every run of a module counts."""
    kinds = _ConvNd | nn.Linear | nn.MultiheadAttention
    counted = {m: name for name, m in model.named_modules() if isinstance(m, kinds) or is_conv1d(m)}
    found = dict.fromkeys(counted.values(), 0)
    call = read_example(example)
    with watched(model, {module: _counter(name, found) for module, name in counted.items()}):
        run_example(model, call.first())
    return found


def _counter(name: str, found: dict[str, int]) -> Hook:
    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, nn.MultiheadAttention):  # which never calls its Linear
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


def macs_by_tensor(
    model: nn.Module, counted: Mapping[str, int], shared: tuple[Shared, ...]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return MACs, and MACs whose weight is not zero, by stored tensor. The tensors of a mixture have equal parts."""
    stored = {
        weight: [group.stored[i] for i in own]
        for group in shared
        for weight, own in zip(group.layers, group.uses, strict=True)
    }
    state: dict[str, Tensor] = model.state_dict()
    first: dict[Any, str] = {}
    for name, tensor in state.items():
        first.setdefault(storage_key(tensor) or name, name)
    every: dict[str, int] = {}
    kept: dict[str, int] = {}
    for path, macs in counted.items():
        module = model.get_submodule(path)
        leaf = next(name for name in _WEIGHTS if getattr(module, name, None) is not None)
        weight = f"{path}.{leaf}".lstrip(".")
        value: Tensor = getattr(module, leaf).detach()
        left = round(macs * int(torch.count_nonzero(value)) / max(value.numel(), 1))
        names = stored.get(weight) or [_stored_name(weight, leaf, state, first)]
        for total, amount in ((every, macs), (kept, left)):
            for i, name in enumerate(names):
                total[name] = total.get(name, 0) + amount * (i + 1) // len(names) - amount * i // len(names)
    return every, kept


def _stored_name(weight: str, leaf: str, state: Mapping[str, Tensor], first: Mapping[Any, str]) -> str:
    """Return the stored tensor of a weight: the first that it is tied to, or the largest one of its parametrization."""
    if weight in state:
        return first[storage_key(state[weight]) or weight]
    parts = [name for name in state if name.startswith(f"{weight.removesuffix(leaf)}parametrizations.{leaf}.")]
    return max(parts, key=lambda name: state[name].numel(), default=weight)
