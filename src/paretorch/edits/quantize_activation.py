"""An activation whose outputs are quantized."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from paretorch.edits.edit import Edit, ModelInfo, find_module
from paretorch.edits.quantized import QuantizedActivation
from paretorch.errors import ArtefactError, ConfigError

MAX_STEPS = 2**22
"""Numbers in the map of one activation, at most."""
_MAX_DIMENSIONS = 8


@dataclass(frozen=True)
class QuantizeActivation(Edit):
    """The activation under the names `modules` becomes a `QuantizedActivation` with a map of precisions of shape `grid`.

    Its levels and range are in the state dict.
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
            raise ArtefactError(f"a {cls.kind!r} edit is damaged")

    def check(self, info: ModelInfo) -> None:
        self._activation(info.model)

    def apply(self, model: nn.Module) -> None:
        inner = self._activation(model)
        parameter = next(model.parameters(), None)
        device = None if parameter is None else parameter.device
        # Values to be filled from a state dict.
        steps = torch.full(self.grid, 255, dtype=torch.int32, device=device)
        bounds = torch.tensor([0.0, 1.0], dtype=torch.float32, device=device)
        replace_module(model, self.modules, QuantizedActivation(inner, steps, bounds))

    def added_names(self) -> set[str]:
        return {f"{name}.{leaf}" for name in self.modules for leaf in ("steps", "bounds")}

    def added_bytes(self) -> int:
        return 4 * math.prod(self.grid) + 8

    def _activation(self, model: nn.Module) -> nn.Module:
        found = [find_module(model, name) for name in self.modules]
        inner, first = found[0], self.modules[0]
        if any(one is not inner for one in found):
            raise ConfigError(f"an edit takes {', '.join(self.modules)} for one module")
        if inner._modules or has_state(inner) or not first:
            raise ConfigError(f"an edit quantizes {first!r}, a {type(inner).__name__}, which is no activation")
        return inner


def has_state(module: nn.Module) -> bool:
    """Whether a module has parameters or buffers; a norm without any has places for them."""
    return any(one is not None for own in (module._parameters, module._buffers) for one in own.values())


def replace_module(model: nn.Module, names: Sequence[str], module: nn.Module) -> None:
    """Register one module under all these names."""
    for name in names:
        path, _, leaf = name.rpartition(".")
        model.get_submodule(path)._modules[leaf] = module
