"""What a network has beside the values of its weights: quantized activations, and layers that share what is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.deploy.codec.container import storage_key
from paretorch.edits import Edit, QuantizedActivation, Share

_WEIGHTS = ("weight", "in_proj_weight", "q_proj_weight")  # the last two: of torch's attention
MACS = "1 MAC is one multiplication and its addition, in convolutions and linear layers, for one example"


@dataclass(frozen=True)
class Activation:
    """A quantized activation: bits of its groups on average, how many groups have how many, and its range."""

    name: str
    bits: float
    groups: Mapping[int, int]
    low: float
    high: float


@dataclass(frozen=True)
class Shared:
    """Layers that are mixed from `stored` tensors.

    uses: for each layer, which of the tensors it is mixed from. runs: where each is one tensor (times a scale), the number
    of that tensor, 1 2 … in the order in which they first run; empty where some layer is a mixture.
    """

    layers: tuple[str, ...]
    stored: tuple[str, ...]
    uses: tuple[tuple[int, ...], ...]

    @property
    def runs(self) -> tuple[int, ...]:
        if any(len(own) != 1 for own in self.uses):
            return ()
        order = list(dict.fromkeys(own[0] for own in self.uses))
        return tuple(order.index(own[0]) + 1 for own in self.uses)


def activations_of(model: nn.Module) -> tuple[Activation, ...]:
    """The quantized activations of a plain network, in its order."""
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
    """The groups of layers that share, as a network's structural edits list them."""
    return tuple(Shared(edit.weights, edit.stored, edit.uses) for edit in edits if isinstance(edit, Share))


def macs_by_tensor(
    model: nn.Module, counted: Mapping[str, int], shared: tuple[Shared, ...]
) -> tuple[dict[str, int], dict[str, int]]:
    """MACs, and those whose weight is not zero, by the stored tensor; of a mixture each of its tensors has an equal part."""
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
        names = stored.get(weight) or [_home(weight, leaf, state, first)]
        for total, amount in ((every, macs), (kept, left)):
            for i, name in enumerate(names):
                total[name] = total.get(name, 0) + amount * (i + 1) // len(names) - amount * i // len(names)
    return every, kept


def _home(weight: str, leaf: str, state: Mapping[str, Tensor], first: Mapping[Any, str]) -> str:
    """The stored tensor of a weight: the first that it is tied to, or the largest that a parametrization makes it of."""
    if weight in state:
        return first[storage_key(state[weight]) or weight]
    parts = [name for name in state if name.startswith(f"{weight.removesuffix(leaf)}parametrizations.{leaf}.")]
    return max(parts, key=lambda name: state[name].numel(), default=weight)
