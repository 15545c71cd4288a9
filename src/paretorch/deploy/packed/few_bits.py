"""Weights of 2, 4 or 8 bits as a CPU reads them, made from whole numbers and steps, and the exact inverse.

16 outputs are a block. Word j of a row has the codes of the next 32/p inputs, those of the first input in the lowest bits; the words
number j of the 16 rows lie side by side, one for each lane of a vector. A code c of p bits is the whole number c − 2^(p−1), or, if all
numbers of a block are odd, 2c + 1 − 2^p: so the odd grid of chapter 5 takes p bits for p bits, as does two's complement.
A factor of two that all numbers of a group have moves into its step; a step may be negative, so that −7 … 8 are codes of 4 bits.

Each row has the fewest bits that hold all of its numbers. Rows are sorted by their bits, widest first; rows of zeros have none.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretorch.deploy.codec.integers import Integers

LANES = 16
WIDTHS = (8, 4, 2)
LEAST_GROUP = 16
"""Inputs that share a step: a multiple of this, or all."""
_AT_ONCE = 1 << 17  # weights that are packed or unpacked at once

Numbers = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, eq=False)
class FewBits:
    """A packed weight of shape (outputs, inputs).

    Args:
        codes: int32, flat: the words of the blocks of 8, then 4, then 2 bits, each (block, word, lane).
        steps: fp32 (block, group, lane).
        odd: uint8 (block): whether its numbers are odd.
        rows: int32 (block, lane): which output it is; −1 if it only fills a block.
        layout: int64: outputs, inputs, inputs in a group, blocks of 8, 4, 2 and 0 bits.
    """

    codes: Tensor
    steps: Tensor
    odd: Tensor
    rows: Tensor
    layout: Tensor

    @cached_property
    def _sizes(self) -> list[int]:
        return [int(size) for size in self.layout.tolist()]

    @property
    def shape(self) -> tuple[int, int]:
        return self._sizes[0], self._sizes[1]

    @property
    def group(self) -> int:
        return self._sizes[2]

    @property
    def blocks(self) -> tuple[int, ...]:
        """Blocks of 8, 4, 2 and 0 bits."""
        return tuple(self._sizes[3:])

    @property
    def bytes(self) -> int:
        return sum(getattr(self, one.name).nbytes for one in fields(self))

    @cached_property
    def places(self) -> Tensor:
        """int64: the packed row of each output."""
        rows = self.rows.flatten().long()
        places = torch.empty(self.shape[0], dtype=torch.int64, device=rows.device)
        held = (rows >= 0).nonzero().flatten()
        places[rows[held]] = held
        return places


def pack(weight: Integers) -> FewBits | None:
    """Return the packed weight; None if some number has more than 8 bits, or groups are not of 16, 32, 48 … inputs."""
    outputs, inputs = weight.numbers.shape
    group = min(weight.group, inputs)
    if not outputs or not inputs or (group < inputs and group % LEAST_GROUP):
        return None
    step = max(1, _AT_ONCE // inputs)
    measured = [_measure(weight.numbers[at : at + step], group) for at in range(0, outputs, step)]
    shifts, flips, widths, odd = (np.concatenate(part) for part in zip(*measured, strict=True))
    if widths.max() > WIDTHS[0]:
        return None
    order, blocks = _order(widths, odd)
    held = np.maximum(order, 0)
    with np.errstate(all="ignore"):  # forged steps may be anything
        steps = np.where(flips, -weight.steps, weight.steps) * np.exp2(shifts).astype(np.float32)
    packed_steps = np.where(order[:, None] >= 0, steps[held], np.float32(0))
    odd_blocks = odd[held].reshape(-1, LANES)[:, 0]
    codes = _all_codes(weight.numbers, held, shifts, flips, odd_blocks, blocks, group)
    return FewBits(
        torch.from_numpy(codes),
        torch.from_numpy(np.ascontiguousarray(packed_steps.reshape(-1, LANES, steps.shape[1]).swapaxes(1, 2))),
        torch.from_numpy(odd_blocks.astype(np.uint8)),
        torch.from_numpy(order.astype(np.int32).reshape(-1, LANES)),
        torch.tensor([outputs, inputs, group, *blocks]),
    )


def _measure(numbers: Numbers, group: int) -> tuple[NDArray[np.int64], NDArray[np.bool_], Numbers, NDArray[np.bool_]]:
    """Return factors of two and signs (rows, groups), and for each row its bits and whether all numbers are odd."""
    starts = np.arange(0, numbers.shape[1], group)
    used = np.bitwise_or.reduceat(numbers, starts, axis=1).astype(np.int64)
    both = np.bitwise_and.reduceat(numbers, starts, axis=1).astype(np.int64)
    low, high = (pick.reduceat(numbers, starts, axis=1).astype(np.int64) for pick in (np.minimum, np.maximum))
    shifts = np.frexp(np.maximum(used & -used, 1).astype(np.float64))[1].astype(np.int64) - 1
    flips = high > -low
    top = np.maximum(high, -low) >> shifts  # the largest magnitude, which is then negative
    least = np.where(flips, -low, high) >> shifts
    # All numbers of a group are odd multiples of 2^shift only if this bit is set in each of them.
    odd = np.asarray(((both >> shifts) & 1).astype(bool).all(1))
    widths = np.full(len(numbers), 2 * WIDTHS[0])
    for width in WIDTHS:
        half = 1 << (width - 1)
        plain = ((top <= half) & (least < half)).all(1)
        widths[np.where(odd, (top < 2 * half).all(1), plain)] = width
    widths[~used.any(1)] = 0
    return shifts, flips, widths, odd


def _order(widths: Numbers, odd: NDArray[np.bool_]) -> tuple[Numbers, list[int]]:
    """Return the output of each packed row, −1 for rows that fill a block, and the blocks of each width."""
    order: list[Numbers] = []
    blocks: list[int] = []
    for width in (*WIDTHS, 0):
        before = sum(len(rows) for rows in order)
        for kind in (True, False):
            rows = np.flatnonzero((widths == width) & (odd == kind))
            order.append(np.pad(rows, (0, -len(rows) % LANES), constant_values=-1))
        blocks.append((sum(len(rows) for rows in order) - before) // LANES)
    return np.concatenate(order), blocks


def _all_codes(
    numbers: Numbers,
    order: Numbers,
    shifts: NDArray[np.int64],
    flips: NDArray[np.bool_],
    odd: NDArray[np.bool_],
    blocks: list[int],
    group: int,
) -> NDArray[np.int32]:
    first, filled, inputs = 0, 0, numbers.shape[1]
    lengths = [count * LANES * -(-inputs * width // 32) for width, count in zip(WIDTHS, blocks, strict=False)]
    found = np.empty(sum(lengths), dtype=np.int32)
    for width, count in zip(WIDTHS, blocks, strict=False):
        step = max(1, _AT_ONCE // (LANES * inputs))
        for at in range(first, first + count, step):
            some = slice(at, min(at + step, first + count))
            rows = order[some.start * LANES : some.stop * LANES]
            own = _reduced(numbers[rows], shifts[rows], flips[rows], group)
            odds = np.repeat(odd[some], LANES)[:, None]
            codes = np.where(odds, (own + ((1 << width) - 1)) >> 1, own + (1 << (width - 1)))
            kept = np.asarray(codes & ((1 << width) - 1), dtype=np.uint32)
            words = _words(kept, width)
            found[filled : filled + words.size] = words
            filled += words.size
        first += count
    return found


def _reduced(numbers: Numbers, shifts: NDArray[np.int64], flips: NDArray[np.bool_], group: int) -> Numbers:
    """Return numbers without the factors and signs that moved into the steps."""
    width = numbers.shape[1]
    shift, sign = (one if one.shape[1] == 1 else np.repeat(one, group, axis=1)[:, :width] for one in (shifts, flips))
    own = numbers.astype(np.promote_types(numbers.dtype, np.int16))
    own >>= shift.astype(own.dtype)
    return np.asarray(np.where(sign, -own, own))


def _words(codes: NDArray[np.uint32], width: int) -> NDArray[np.int32]:
    """Return codes (rows, inputs) as words (block, word, lane), flat."""
    per = 32 // width
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % per)))
    words = padded[:, ::per].copy()
    for k in range(1, per):
        words |= padded[:, k::per] << np.uint32(k * width)
    return np.ascontiguousarray(words.reshape(-1, LANES, words.shape[1]).swapaxes(1, 2)).view(np.int32).ravel()


def unpack_rows(weight: FewBits, places: Tensor) -> Tensor:
    """Return the weights of these packed rows, fp32 (row, input), by torch alone."""
    found = torch.zeros(len(places), weight.shape[1], device=weight.codes.device)
    step = max(1, _AT_ONCE // weight.shape[1])
    for at in range(0, len(places), step):
        first, begin = 0, 0
        for width, count in zip(WIDTHS, weight.blocks, strict=False):
            words = -(-weight.shape[1] * width // 32)
            end = begin + count * words * LANES
            blocks = weight.codes[begin:end].view(count, words, LANES)
            part = places[at : at + step]
            here = ((part >= first * LANES) & (part < (first + count) * LANES)).nonzero().flatten()
            if len(here):
                found[at + here] = _unpack(weight, blocks, part[here], first, width)
            first, begin = first + count, end
    return found


def _unpack(weight: FewBits, blocks: Tensor, places: Tensor, first: int, width: int) -> Tensor:
    block, lane = places // LANES, places % LANES
    shifts = torch.arange(0, 32, width, device=places.device, dtype=torch.int32)
    codes = (blocks[block - first, :, lane][:, :, None] >> shifts) & ((1 << width) - 1)
    codes = codes.flatten(1)[:, : weight.shape[1]]
    odd = weight.odd[block].bool()[:, None]
    numbers = torch.where(odd, 2 * codes + 1 - (1 << width), codes - (1 << (width - 1)))
    steps = weight.steps[block, :, lane]
    if steps.shape[1] > 1:
        steps = steps.repeat_interleave(weight.group, dim=1)[:, : weight.shape[1]]
    return numbers * steps
