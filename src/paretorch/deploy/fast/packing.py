"""The packed form of a weight: tiles of ROWS × COLUMNS codes, each with its own width, and the exact inverse.

Rows are sorted by their widths, widest first, and cut into row tiles; each is cut into blocks of columns. A tile has
the narrowest of 2, 4 and 8 bits that holds all of its values; tiles of zeros are left out. So precisions that differ
between channels, or between blocks of at least this size, take the bits that they say. Finer ones take those of the largest in
the tile.
Within a tile, word j of a row holds the weights of columns j, j + LENGTH, j + 2·LENGTH …: code number i of all words
belongs to a contiguous piece of the input.

Which width a tile needs: every value is an integer times a power of two, its row's unit. Within a row of a tile the integers
are all odd (the odd grid) or any (the plain grid, see `codes`). A row has one unit per width, so that the unit is applied
once, after all of its tiles of that width; a tile whose row would need a second unit goes to the next width.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

from paretorch.deploy.fast.codes import WIDTHS, WORD, decode, encode, largest
from paretorch.edits.scale import power_of_two
from paretorch.errors import ConfigError

ZERO = -127
"""The exponent that stands for a unit of 0, as in the bits of an fp32 number."""
_NONE = 1 << 20  # in place of an exponent: the row has no values


@dataclass(frozen=True)
class Extent:
    """The range of the values in each row (first dimension) of each block of columns (second)."""

    low: Tensor
    """The smallest exponent e such that some value is an odd multiple of 2^e; `_NONE` if all are zero."""
    high: Tensor
    """The largest."""
    top: Tensor
    """The largest magnitude."""
    gaps: Tensor
    """Whether some values, but not all, are zero."""

    def take(self, rows: Tensor, padded: int) -> Extent:
        """Return these rows, padded with rows of zeros."""
        fill = (0, 0, 0, padded - len(rows))
        pad = torch.nn.functional.pad
        return Extent(
            pad(self.low[rows], fill, value=_NONE),
            pad(self.high[rows], fill, value=-_NONE),
            pad(self.top[rows], fill),
            pad(self.gaps[rows], fill),
        )

    def fits(self, width: int, odd: bool, exponent: Tensor) -> Tensor:
        """Return whether all integers are on the grid of this width, if the unit is 2^exponent."""
        in_range = self.top <= largest(width, odd) * power_of_two(exponent.clamp(ZERO, 127))
        if odd:
            return in_range & ~self.gaps & (self.low == exponent) & (self.high == exponent)
        return in_range & (self.low >= exponent)

    def width(self, odd: bool) -> Tensor:
        """Return the narrowest width of each row and block on its own; 0 if all is zero, 16 if no width fits."""
        needed = torch.full_like(self.low, 16)
        for width in WIDTHS:
            needed[self.fits(width, odd, self.low)] = width
        return needed.masked_fill(self.low == _NONE, 0)


def measure_blocks(weight: Tensor, columns: int) -> Extent:
    """Return the extents of a float32 weight, in blocks of so many columns; the last block may be shorter."""
    parts = [_measure_block(block) for block in weight.split(columns, dim=1)]
    return Extent(*(torch.stack([part[i] for part in parts], dim=1) for i in range(4)))


def _measure_block(block: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mantissa, exponent = torch.frexp(block)
    whole = (mantissa * 2.0**24).to(torch.int32)
    trailing = torch.frexp((whole & -whole).float())[1] - 1
    lowest_bit = exponent - 24 + trailing
    zero = block == 0
    low = lowest_bit.masked_fill(zero, _NONE).amin(1)
    high = lowest_bit.masked_fill(zero, -_NONE).amax(1)
    return low, high, block.abs().amax(1), zero.any(1) & ~zero.all(1)


def assign(extent: Extent, height: int, odd: bool) -> tuple[Tensor, Tensor] | None:
    """Return the width of each tile and the exponent of each unit; None if some tile fits no width.

    Widths are (row tile, block) and 0 if all is zero; exponents are (width, row).
    """
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


ROWS, COLUMNS = 32, 256
_AT_ONCE = 1 << 22  # weights that are packed or unpacked at once


class Order(Enum):
    """What is known about the places of tiles without looking them up.

    FULL: every row tile has all of its tiles, in one width. REGULAR: its tiles of a width are those of blocks 0, 1, 2 …
    FREE: nothing.
    """

    FREE = 0
    REGULAR = 1
    FULL = 2


@dataclass(frozen=True)
class Packed:
    """A weight of shape (outputs, inputs). Index 0, 1, 2 of `words`, `places`, `spans`, `exponents`: widths 8, 4 and 2."""

    shape: tuple[int, int]
    odd: bool
    words: tuple[Tensor, Tensor, Tensor]
    """int16 (tile, row, LENGTH), LENGTH = columns · width / 16; tiles in order of row tile, then block."""
    places: tuple[Tensor, Tensor, Tensor]
    """int32 (tile): its block of columns."""
    spans: Tensor
    """int32 (row tile, width, 2): its tiles are spans[…, 0] ≤ tile < spans[…, 1]."""
    exponents: Tensor
    """int32 (width, packed row): a code's integer is multiplied by 2 to this power; −127 stands for 0."""
    rows: Tensor
    """int32 (packed row): which output it is; `outputs` if it only pads a row tile."""

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a tile."""
        return len(self.rows) // len(self.spans), self.words[0].shape[2] * WORD // WIDTHS[0]

    @property
    def order(self) -> Order:
        """What is known about the places of the tiles."""
        whole = len(self.spans) * -(-self.shape[1] // self.tile[1])
        regular = all(
            torch.equal(places, torch.arange(len(places), device=places.device) - _first(self.spans[:, i]))
            for i, places in enumerate(self.places)
        )
        full = regular and any(len(words) == whole for words in self.words)
        return Order.FULL if full else Order.REGULAR if regular else Order.FREE

    @property
    def bytes(self) -> int:
        """Bytes of the codes."""
        return sum(words.numel() * words.element_size() for words in self.words)


def pack(weight: Tensor, rows: int = ROWS, columns: int = COLUMNS) -> Packed:
    """Pack a two-dimensional weight exactly; raise if it cannot be packed."""
    if weight.dim() != 2 or not weight.is_floating_point() or 0 in weight.shape:
        raise ConfigError(
            f"A packed weight is two-dimensional and floating, not {tuple(weight.shape)} of {weight.dtype}"
        )
    plain = weight.detach().cpu()
    full = plain.float()
    if not torch.isfinite(full).all() or not torch.equal(full.to(plain.dtype), plain):
        raise ConfigError("A packed weight must be finite and exact in float32")
    extents = [measure_blocks(part, columns) for part in full.split(max(1, _AT_ONCE // full.shape[1]))]
    extent = Extent(*(torch.cat([getattr(e, name) for e in extents]) for name in ("low", "high", "top", "gaps")))
    found = [
        plan
        for odd in (True, False)
        for together in (True, False)
        if (plan := _plan(extent, rows, odd, together)) is not None
    ]
    if not found:
        raise ConfigError(
            "The weight is not on a grid of 2, 4 or 8 bits: every row of a tile must be odd, or at most 7-bit, "
            "multiples of one power of two (train with SMOL(allowed_bits=(2, 4, 8), group='channel'))"
        )
    return _pack(full, min(found, key=lambda plan: int(plan.widths.sum())), rows, columns)


class _Plan(NamedTuple):
    odd: bool
    rows: Tensor
    widths: Tensor
    """(row tile, block)."""
    exponents: Tensor


def _plan(extent: Extent, height: int, odd: bool, together: bool) -> _Plan | None:
    """Return a plan to pack the rows in this order on this grid; None if they do not fit."""
    widths, outputs = extent.width(odd), len(extent.low)
    if (widths == 16).any():
        return None
    order = torch.arange(outputs)
    if together:  # sort rows by their widths, so that different channels share no tile
        order = torch.unique(-widths, dim=0, return_inverse=True)[1].argsort(stable=True)
    padded = -(-outputs // height) * height
    assigned = assign(extent.take(order, padded), height, odd)
    filled = torch.nn.functional.pad(order, (0, padded - outputs), value=outputs).to(torch.int32)
    return None if assigned is None else _Plan(odd, filled, *assigned)


def _pack(weight: Tensor, plan: _Plan, height: int, columns: int) -> Packed:
    words, places, spans = [], [], []
    for place, width in enumerate(WIDTHS):
        here = plan.widths == width
        row_tile, block = here.nonzero(as_tuple=True)
        ends = here.sum(1).cumsum(0)
        spans.append(torch.stack([ends - here.sum(1), ends], dim=1))
        places.append(block.to(torch.int32))
        units = power_of_two(plan.exponents[place])
        words.append(_words(weight, plan.rows, units, row_tile, block, width, plan.odd, height, columns))
    return Packed(
        (weight.shape[0], weight.shape[1]),
        plan.odd,
        (words[0], words[1], words[2]),
        (places[0], places[1], places[2]),
        torch.stack(spans, dim=1).to(torch.int32),
        plan.exponents,
        plan.rows,
    )


def _words(
    weight: Tensor,
    rows: Tensor,
    units: Tensor,
    row_tile: Tensor,
    block: Tensor,
    width: int,
    odd: bool,
    height: int,
    columns: int,
) -> Tensor:
    length = columns * width // WORD
    result = torch.empty(len(block), height, length, dtype=torch.int16)
    row_of = rows.view(-1, height).long().clamp_max(weight.shape[0] - 1)
    within = torch.arange(columns)
    shifts = (torch.arange(WORD // width, dtype=torch.int32) * width)[:, None]
    some = max(1, _AT_ONCE // (height * columns))
    for part in torch.arange(len(block)).split(some):
        at = (block[part, None] * columns + within).clamp_max(weight.shape[1] - 1)
        values = weight[row_of[row_tile[part]][:, :, None], at[:, None, :]]
        unit = units.view(-1, height)[row_tile[part]][:, :, None]
        # A row without a unit is multiplied by 0, so any code will do.
        integers = torch.where(unit > 0, values / unit, 1.0).to(torch.int32)
        codes = encode(integers, width, odd).view(len(part), height, WORD // width, length)
        result[part] = (codes << shifts).sum(2).to(torch.int16)
    return result


def unpack(packed: Packed) -> Tensor:
    """Return the weight, float32, on the device of the packed one."""
    outputs, inputs = packed.shape
    height, columns = packed.tile
    device = packed.rows.device
    blocks = -(-inputs // columns)
    dense = torch.zeros(len(packed.spans), blocks, height, columns, device=device)
    for place, width in enumerate(WIDTHS):
        words, shifts = packed.words[place], torch.arange(WORD // width, device=device, dtype=torch.int32) * width
        row_tile = _owners(packed.spans[:, place])
        for part in torch.arange(len(words), device=device).split(max(1, _AT_ONCE // (height * columns))):
            codes = (words[part].to(torch.int32)[:, :, None, :] >> shifts[:, None]) & ((1 << width) - 1)
            integers = decode(codes, width, packed.odd).view(len(part), height, columns)
            unit = power_of_two(packed.exponents[place]).view(-1, height)[row_tile[part]][:, :, None]
            dense[row_tile[part], packed.places[place][part].long()] = integers * unit
    flat = dense.permute(0, 2, 1, 3).reshape(len(packed.rows), -1)[:, :inputs]
    result = torch.empty(outputs + 1, inputs, device=device)
    result[packed.rows.long()] = flat
    return result[:outputs]


def _owners(spans: Tensor) -> Tensor:
    """Return the row tile of every tile."""
    return torch.arange(len(spans), device=spans.device).repeat_interleave(spans[:, 1] - spans[:, 0])


def _first(spans: Tensor) -> Tensor:
    """Return the first tile of the row tile of every tile."""
    return spans[:, 0].long()[_owners(spans)]
