"""Packed weights with any codes, for measurements: how long a product takes depends on no code."""

from __future__ import annotations

import torch
from torch import Tensor

from paretorch.deploy.fast.codes import WIDTHS, WORD
from paretorch.deploy.fast.packing import Packed


def stand_in(
    shape: tuple[int, int], tile: tuple[int, int], widths: Tensor | int, odd: bool, device: torch.device | str
) -> Packed:
    """Random codes in tiles of these widths (row tile, block), or all of one; weights between −2 and 2."""
    tiles, blocks = (-(-size // step) for size, step in zip(shape, tile, strict=True))
    wide = torch.full((tiles, blocks), widths) if isinstance(widths, int) else widths
    words, places, spans = [], [], []
    for width in WIDTHS:
        here = wide == width
        size = (int(here.sum()), tile[0], tile[1] * width // WORD)
        words.append(torch.randint(-(1 << 15), 1 << 15, size, dtype=torch.int16, device=device))
        places.append(here.nonzero()[:, 1].to(device, torch.int32))
        ends = here.sum(1).cumsum(0)
        spans.append(torch.stack([ends - here.sum(1), ends], dim=1))
    exponents = torch.tensor([[2 - odd - width] for width in WIDTHS], dtype=torch.int32).expand(-1, tiles * tile[0])
    rows = torch.arange(tiles * tile[0], dtype=torch.int32).clamp_max(shape[0])
    return Packed(
        shape,
        odd,
        (words[0], words[1], words[2]),
        (places[0], places[1], places[2]),
        torch.stack(spans, dim=1).to(device, torch.int32),
        exponents.contiguous().to(device),
        rows.to(device),
    )
