"""Weights on the grids that can be packed."""

from __future__ import annotations

import torch
from torch import Tensor

from paretorch.methods.precision.grid import quantize


def on_the_grid(bits: Tensor, scale: float = 0.25, seed: int = 0) -> Tensor:
    """Random weights with these precisions, one for each weight."""
    noise = torch.randn(bits.shape, generator=torch.Generator().manual_seed(seed))
    return quantize(0.8 * noise, bits) * scale


def by_channel(outputs: int, inputs: int, allowed: tuple[int, ...], seed: int = 0) -> Tensor:
    pick = torch.randint(len(allowed), (outputs, 1), generator=torch.Generator().manual_seed(seed))
    return torch.tensor(allowed)[pick].expand(-1, inputs)


def by_block(outputs: int, inputs: int, block: tuple[int, int], allowed: tuple[int, ...], seed: int = 0) -> Tensor:
    shape = (-(-outputs // block[0]), -(-inputs // block[1]))
    pick = torch.randint(len(allowed), shape, generator=torch.Generator().manual_seed(seed))
    wide = torch.tensor(allowed)[pick].repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return wide[:outputs, :inputs]
