"""Which width each tile of a weight needs: every value is an integer times a power of two, its row's unit.

An integer is odd throughout a row of a tile (the odd grid) or any (the plain grid, `codes`). A row has one unit for each
width, so that the unit is applied once, after all of its tiles of that width; a tile whose row would need a second unit
goes to the next width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paretorch.deploy.fast.codes import WIDTHS, largest
from paretorch.support.binary import power_of_two

ZERO = -127
"""The exponent that stands for a unit of 0, as it does in the bits of an fp32 number."""
_NONE = 1 << 20  # the exponent of a row without values


@dataclass(frozen=True)
class Extent:
    """Of each row (first dimension) of each block of columns (second)."""

    low: Tensor
    """The smallest exponent e such that some value is an odd multiple of 2^e; `_NONE` if all are zero."""
    high: Tensor
    """The largest."""
    top: Tensor
    """The largest magnitude."""
    gaps: Tensor
    """Whether some values, but not all, are zero."""

    def take(self, rows: Tensor, padded: int) -> Extent:
        """These rows, filled up with rows of zeros."""
        fill = (0, 0, 0, padded - len(rows))
        pad = torch.nn.functional.pad
        return Extent(
            pad(self.low[rows], fill, value=_NONE),
            pad(self.high[rows], fill, value=-_NONE),
            pad(self.top[rows], fill),
            pad(self.gaps[rows], fill),
        )

    def fits(self, width: int, odd: bool, exponent: Tensor) -> Tensor:
        """Whether all integers are on the grid of this width, if the unit is 2^exponent."""
        room = self.top <= largest(width, odd) * power_of_two(exponent.clamp(ZERO, 127))
        if odd:
            return room & ~self.gaps & (self.low == exponent) & (self.high == exponent)
        return room & (self.low >= exponent)

    def width(self, odd: bool) -> Tensor:
        """The narrowest width for each on its own; 0 where all is zero, 16 where none will do."""
        needed = torch.full_like(self.low, 16)
        for width in WIDTHS:
            needed[self.fits(width, odd, self.low)] = width
        return needed.masked_fill(self.low == _NONE, 0)


def measure(weight: Tensor, columns: int) -> Extent:
    """The extents of a float32 weight, in blocks of so many columns; the last block may be shorter."""
    parts = [_measure(block) for block in weight.split(columns, dim=1)]
    return Extent(*(torch.stack([part[i] for part in parts], dim=1) for i in range(4)))


def _measure(block: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mantissa, exponent = torch.frexp(block)
    whole = (mantissa * 2.0**24).to(torch.int32)
    trailing = torch.frexp((whole & -whole).float())[1] - 1
    lowest_bit = exponent - 24 + trailing
    zero = block == 0
    low = lowest_bit.masked_fill(zero, _NONE).amin(1)
    high = lowest_bit.masked_fill(zero, -_NONE).amax(1)
    return low, high, block.abs().amax(1), zero.any(1) & ~zero.all(1)


def assign(extent: Extent, height: int, odd: bool) -> tuple[Tensor, Tensor] | None:
    """Widths of tiles of `height` rows (row tile, block), 0 where all is zero, and exponents
    of the units (width, row); or None."""
    blocks = extent.low.shape[1]
    tiles = (-1, height, blocks)
    empty = extent.low == _NONE
    left = ~empty.view(tiles).all(1)
    widths = torch.zeros_like(left, dtype=torch.int32)
    exponents = torch.full((len(WIDTHS), len(extent.low)), ZERO, dtype=torch.int32)
    for place, width in reversed(list(enumerate(WIDTHS))):
        alone = (extent.fits(width, odd, extent.low) | empty).view(tiles).all(1) & left
        among = alone[:, None, :].expand(-1, height, -1).reshape(-1, blocks)
        unit = extent.low.masked_fill(~among, _NONE).amin(1, keepdim=True)
        # A row of zeros has the unit 0. On the odd grid it can have no other: there is no code for zero.
        good = extent.fits(width, odd, unit) | (empty & (unit == _NONE) if odd else empty)
        taken = good.view(tiles).all(1) & alone
        exponents[place] = unit.masked_fill(unit == _NONE, ZERO).flatten()
        widths[taken] = width
        left &= ~taken
    if left.any() or (extent.low <= ZERO).any():
        return None
    return widths, exponents
