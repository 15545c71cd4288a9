"""Loading a file with packed weights: each weight is packed as it is decoded, so that no dense copy of the network is made."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paretorch.deploy.codec.integers import Integers
from paretorch.deploy.packed.few_bits import FewBits
from paretorch.deploy.packed.swap import find_packable, pack_for, packed_layer, swap_modules
from paretorch.errors import warn


class PackedWeights:
    """The weights of a module that are packed while its file is read; nothing of the module changes before `swap`."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._owners = find_packable(module)
        self._packed: dict[str, FewBits] = {}

    @property
    def names(self) -> set[str]:
        """The names of all weights that may be packed."""
        return {*self._owners}

    def take(self, name: str, weight: Integers | Tensor, dense: Tensor) -> None:
        """Pack a weight, or fill its dense tensor if it does not have few bits."""
        if isinstance(weight, Integers):
            packed = pack_for(self._owners[name][0], weight)
            if packed is not None:
                self._packed[name] = packed
                return
            _fill(dense, weight)
        else:
            dense.copy_(weight)

    def tie(self, name: str, first: str, dense: Tensor) -> bool:
        """Give a weight the packed values of another one; return False if that is not packed."""
        if first not in self._packed:
            return False
        if name in self._owners:
            self._packed[name] = self._packed[first]
        else:
            layer = packed_layer(self._owners[first][0], self._packed[first])
            dense.copy_(layer.weight.view(dense.shape))
        return True

    def swap(self) -> nn.Module:
        """Put the packed layers in their places and return the module."""
        if not self._packed:
            warn("packed=True found no layer with weights of 2, 4 or 8 bits: the network is loaded as it is without it")
        swaps: dict[nn.Module, nn.Module] = {
            module: packed_layer(module, packed)
            for name, packed in self._packed.items()
            for module in self._owners[name]
        }
        return swap_modules(self._module, swaps)


@torch.no_grad()
def _fill(dense: Tensor, weight: Integers, rows: int = 256) -> None:
    flat = dense.view(len(dense), -1)
    for at in range(0, len(flat), rows):
        flat[at : at + rows] = torch.from_numpy(weight.dense(at, at + rows))
