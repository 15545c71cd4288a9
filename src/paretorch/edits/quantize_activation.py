"""An activation whose outputs are quantized: the plain module that does it, and the edit that puts the module in place.

    Q(u, p) = low + k·(high − low)/(2^p − 1),   k the nearest of 0 … 2^p − 1,   u clipped to [low, high] first

These are PACT's 2^p levels. Both ends are levels, so the zeros of a ReLU stay zeros. The thesis names no quantizer. The error
of this one is at most M/(2(2^p − 1)), within the noise M/2·σ(s) = M/2^p that p bits were learned with. Gradients are PACT's:
straight through inside the range, to the ends of the range outside of it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from paretorch.edits.edit import Edit, ModelInfo, find_module
from paretorch.errors import ArtefactError, ConfigError

MAX_STEPS = 2**22
"""The most numbers in the map of one activation."""
_MAX_DIMENSIONS = 8


def clip(u: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return u clipped to [low, high], with gradients for both ends."""
    return torch.minimum(torch.maximum(u, low.to(u.dtype)), high.to(u.dtype))


def quantize_uniform(clipped: Tensor, low: Tensor, high: Tensor, steps: Tensor, training: bool) -> Tensor:
    """Return the nearest of steps + 1 equally spaced levels from low to high; gradients pass straight through while training."""
    low, wide = low.detach(), (high - low).detach()
    position = (clipped.detach().to(torch.float32) - low) / wide
    value = (low + torch.round(position * steps) / steps * wide).to(clipped.dtype)
    return value + (clipped - clipped.detach()) if training else value


def steps_of(bits: Tensor) -> Tensor:
    """Return 2^p − 1 for each number of bits p."""
    return (1 << bits.to(torch.int32)) - 1


class QuantizedActivation(nn.Module):
    """`inner`, then Q. An ordinary module with two buffers and no state of a plan; it trains, and exports as plain operations.

    Args:
        inner: The activation.
        steps: 2^p − 1 for each group, in the shape of the groups, which broadcasts with a feature map. Stored flat.
        bounds: The range: low and high.
    """

    steps: Tensor
    bounds: Tensor

    def __init__(self, inner: nn.Module, steps: Tensor, bounds: Tensor) -> None:
        super().__init__()
        self.inner, self.grid = inner, tuple(steps.shape)
        self.register_buffer("steps", steps.to(torch.int32).flatten())
        self.register_buffer("bounds", bounds)
        self.train(inner.training)

    @property
    def bits(self) -> Tensor:
        """The bits p of each group, in the shape of the groups."""
        return torch.log2(self.steps.to(torch.float32) + 1).round().to(torch.int32).view(self.grid)

    def forward(self, x: Tensor) -> Tensor:
        low, high = self.bounds.to(torch.float32).unbind()
        steps = self.steps.view(self.grid).to(torch.float32)
        return quantize_uniform(clip(self.inner(x), low, high), low, high, steps, self.training)

    def extra_repr(self) -> str:
        low, high = self.bounds.tolist()
        return f"{low:g} to {high:g}, {float(self.bits.float().mean()):.3g} bits"


@dataclass(frozen=True)
class QuantizeActivation(Edit):
    """Replace an activation by a `QuantizedActivation`, whose precisions and range are in the state dict.

    Args:
        modules: All names of the activation.
        grid: The shape of the map of precisions.
    """

    modules: tuple[str, ...]
    grid: tuple[int, ...]

    kind: ClassVar[str] = "quantize_activation"
    json_fields: ClassVar[Mapping[str, type]] = {"modules": list, "grid": list}

    @classmethod
    def check_json(cls, data: Mapping[str, Any]) -> None:
        names, grid = data["modules"], data["grid"]
        sound = (
            len(names) > 0
            and all(isinstance(name, str) and name for name in names)
            and len(grid) <= _MAX_DIMENSIONS
            and all(type(n) is int and 0 < n <= MAX_STEPS for n in grid)
            and math.prod(grid) <= MAX_STEPS
        )
        if not sound:
            raise ArtefactError(f"A {cls.kind!r} edit is damaged")

    def check(self, info: ModelInfo) -> None:
        self._activation(info.model)

    def apply(self, model: nn.Module) -> None:
        inner = self._activation(model)
        parameter = next(model.parameters(), None)
        device = None if parameter is None else parameter.device
        # The values are filled from a state dict.
        steps = torch.full(self.grid, 255, dtype=torch.int32, device=device)
        bounds = torch.tensor([0.0, 1.0], dtype=torch.float32, device=device)
        replace_module(model, self.modules, QuantizedActivation(inner, steps, bounds))

    def renamed(self, name: Callable[[str], str]) -> Self:
        return replace(self, modules=tuple(map(name, self.modules)))

    def added_names(self) -> set[str]:
        return {f"{name}.{leaf}" for name in self.modules for leaf in ("steps", "bounds")}

    def added_bytes(self) -> int:
        return 4 * math.prod(self.grid) + 8

    def _activation(self, model: nn.Module) -> nn.Module:
        found = [find_module(model, name) for name in self.modules]
        inner, first = found[0], self.modules[0]
        if any(one is not inner for one in found):
            raise ConfigError(f"An edit names {', '.join(self.modules)} as one module, but they are several")
        if inner._modules or has_state(inner) or not first:
            raise ConfigError(f"An edit quantizes {first!r}, a {type(inner).__name__}, which is not an activation")
        return inner


def has_state(module: nn.Module) -> bool:
    """Return whether a module has parameters or buffers. A norm without any has the names, set to None."""
    return any(one is not None for own in (module._parameters, module._buffers) for one in own.values())


def replace_module(model: nn.Module, names: Sequence[str], module: nn.Module) -> None:
    """Register one module under all of these names."""
    for name in names:
        path, _, leaf = name.rpartition(".")
        model.get_submodule(path)._modules[leaf] = module
