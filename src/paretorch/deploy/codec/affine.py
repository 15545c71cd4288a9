"""The coding of values on grids of their own per group of neighbours: w = s · c, or w = s · q + o as `lines` has it.

It stores the layout (axis, length of a group, form), the steps and offsets as small tensors, one symbol per value for the code,
and one for the correction, which takes no bits if every product is exact. Escaped values follow unchanged. Codes are counted
from a zero point, a whole number per group, if that takes fewer bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from paretorch.deploy.codec import grids
from paretorch.deploy.codec.codings import (
    PLAIN_CODINGS,
    Codebook,
    Coding,
    Constant,
    Dense,
    Grid,
    Shape,
    Steps,
    explain,
)
from paretorch.deploy.codec.grids import HALF
from paretorch.deploy.codec.grouped import ESCAPE, FLAT, Grouped, products
from paretorch.deploy.codec.integers import Integers, smallest_type
from paretorch.deploy.codec.lines import FORMS
from paretorch.deploy.codec.multiples import Codes, Floats
from paretorch.deploy.codec.streams import Array, BitCounts, PartsReader, PartsWriter
from paretorch.deploy.codec.symbols import Symbols, decode_symbols, read_tables
from paretorch.deploy.codec.words import Planes, read_planes, to_words
from paretorch.errors import ArtefactError

_CHUNK = 1 << 17  # values computed at once
_HEADER_BITS = 64.0  # of layout and form, about
_MAX_BASE = 1 << 12  # the largest zero point
_NO_CODE = 1 << 30


class Affine:
    name = "affine"

    def __init__(self, found: Grouped) -> None:
        self._found, length = found, found.layout.length
        rows, width = found.codes.shape
        self._base = _zero_points(found)
        codes = found.codes if self._base is None else found.codes - _spread(self._base, length, width)
        if found.form:  # symbol 0 is a value of zero
            coded = _coded(found)
            self._low = int(codes[coded].min(initial=_MAX_BASE))
            codes = np.where(coded, codes - self._low + 1, 0)
        self._steps = _vector(found.steps)
        self._offsets = _vector(found.offsets) if found.form else None
        self._codes = Symbols(codes.astype(np.int32).ravel(), (rows, width), block=length)
        self._corrections = Symbols(found.corrections.astype(np.int32).ravel(), (rows, width))
        self._escaped = Planes(found.escaped, found.dtype) if found.escaped.size else None
        self.precisions = _precisions(found)
        self.cost = _HEADER_BITS + sum(part.cost for part in self._parts)

    @property
    def _parts(self) -> list[Coding | Symbols | Planes]:
        parts = [self._steps, self._offsets, self._codes, self._corrections, self._escaped]
        found: list[Coding | Symbols | Planes] = [part for part in parts if part is not None]
        return found if self._base is None else [*found, Symbols(self._base.ravel())]

    def write(self, writer: PartsWriter) -> BitCounts:
        layout, index = self._found.layout, writer.index
        for number in (layout.axis, layout.length - 1, self._found.form, self._base is not None):
            index.number(int(number))
        if self._found.form:
            index.signed(self._low)
        steps = _write_vector(self._steps, writer)
        if self._offsets is not None:
            steps += _write_vector(self._offsets, writer)
        if self._base is not None:
            base = Symbols(self._base.ravel())
            base.write(index, writer.coded)
            steps += float(base.bits.sum())
        self._codes.write(index, writer.coded)
        self._corrections.write(index, writer.coded)
        off = float(self._corrections.bits.sum()) + self._corrections.map_bits
        if self._escaped is not None:
            off += self._escaped.write(writer)
        bits = explain(self._codes, by_level=False)
        return bits._replace(codes=bits.codes + steps + off, steps=steps, off=off)

    @staticmethod
    def read(reader: PartsReader, shape: Shape, dtype: torch.dtype, out: Array) -> None:
        _fill(_read_parts(reader, shape, dtype), reader, shape, dtype, out)

    @staticmethod
    def read_integers(reader: PartsReader, shape: Shape) -> Integers | Array:
        """Read an fp32 weight as whole numbers and steps of its outputs; as words if it is no such product everywhere."""
        parts = _read_parts(reader, shape, torch.float32)
        rows, width = shape[0], math.prod(shape[1:])
        along = parts.axis == 0 or (parts.axis == FLAT and width % parts.length == 0)
        if not along or parts.form or parts.corrections.any():
            out = np.empty(rows * width, dtype=np.uint32)
            _fill(parts, reader, shape, torch.float32, out)
            return out
        numbers, steps = parts.codes.reshape(rows, width), parts.steps.reshape(rows, -1)
        if parts.base is not None:
            numbers = numbers.astype(np.int32) + _spread(parts.base.reshape(rows, -1), parts.length, width)
        kind = smallest_type(int(numbers.min()), int(numbers.max()))
        return Integers(numbers.astype(kind, copy=False), steps, min(parts.length, width))


class _Parts(NamedTuple):
    """What is stored of a weight, but for its escaped values."""

    axis: int
    length: int
    form: int
    low: int
    steps: Floats
    offsets: Floats
    base: Array | None
    codes: Array
    corrections: Array


def _read_parts(reader: PartsReader, shape: Shape, dtype: torch.dtype) -> _Parts:
    if dtype not in (torch.float32, *HALF) or not shape:
        raise ArtefactError("The artefact has steps of groups for a tensor that cannot have any")
    index = reader.index
    axis = index.number(FLAT)
    if axis != FLAT and axis >= len(shape):
        raise ArtefactError("The artefact has groups along an axis that the tensor does not have")
    rows = 1 if axis == FLAT else shape[axis]
    width = math.prod(shape) // rows
    length = 1 + index.number(width - 1)
    form, shifted = index.number(len(FORMS)), index.number(1)
    low = index.signed(_MAX_BASE) if form else 0
    many = -(-width // length)
    steps = _read_vector(reader, (rows, many))
    offsets = _read_vector(reader, (rows, many)) if form else steps
    base = _read_symbols(reader, (rows, many), np.int16, ()) if shifted else None
    codes = _read_symbols(reader, (rows, width), np.int16)
    return _Parts(axis, length, form, low, steps, offsets, base, codes, _read_symbols(reader, (rows, width), np.int8))


def _fill(parts: _Parts, reader: PartsReader, shape: Shape, dtype: torch.dtype, out: Array) -> None:
    """Write the words of all values, flat."""
    axis, form = parts.axis, parts.form
    rows, width = parts.codes.shape
    own = out.reshape(rows, width) if axis in (0, FLAT) else np.empty((rows, width), dtype=out.dtype)
    for part, columns in _windows(rows, width):
        groups = np.arange(columns.start, columns.stop) // parts.length
        codes = parts.codes[part, columns]
        numbers = codes.astype(np.float32) + np.float32(parts.low - 1 if form else 0)
        if parts.base is not None:
            numbers += parts.base[part][:, groups]
        made = products(form, numbers, parts.steps[part], parts.offsets[part], groups)
        if form:
            made[codes == 0] = 0.0
        words = to_words(torch.from_numpy(made).to(dtype)).reshape(made.shape)
        own[part, columns] = words + parts.corrections[part, columns].astype(words.dtype)
    _read_escaped(reader, own, parts.corrections == ESCAPE, dtype)
    if axis not in (0, FLAT):
        moved = np.moveaxis(out.reshape(shape), axis, 0)
        moved[...] = own.reshape(moved.shape)


def _windows(rows: int, width: int) -> Iterator[tuple[slice, slice]]:
    """Yield ranges of rows and columns with a chunk of values each, so that temporaries are small."""
    height, span = max(1, _CHUNK // width), min(width, _CHUNK)
    for start in range(0, rows, height):
        for begin in range(0, width, span):
            yield slice(start, start + height), slice(begin, min(begin + span, width))


def _read_escaped(reader: PartsReader, own: Array, away: Array, dtype: torch.dtype) -> None:
    escaped = np.empty(int(np.count_nonzero(away)), dtype=own.dtype)
    if escaped.size:
        read_planes(reader, escaped, dtype)
        own[away] = escaped


def _read_symbols(
    reader: PartsReader, shape: tuple[int, int], dtype: type[np.signedinteger[Any]], known: Shape | None = None
) -> Array:
    """Read integers of this shape.

    Args:
        known: The shape that the encoder was given, if not this one.
    """
    known = shape if known is None else known
    tables = read_tables(reader.index, reader.coded, shape[0] * shape[1], known)
    if np.abs(tables.alphabet).max() > np.iinfo(dtype).max:
        raise ArtefactError("The artefact has codes that are too large")
    symbols = np.empty(shape[0] * shape[1], dtype=dtype)
    decode_symbols(reader.coded, tables, tables.alphabet.astype(dtype), symbols, known)
    return symbols.reshape(shape)


def _spread(numbers: Array, length: int, width: int) -> Array:
    """Return a number per group as one per value."""
    return np.repeat(numbers, length, axis=1)[:, :width]


def _zero_points(found: Grouped) -> Codes | None:
    """Return the least code of each group if counting from there takes fewer bits; None if not."""
    length, width = found.layout.length, found.codes.shape[1]
    coded = _coded(found)
    least = np.minimum.reduceat(np.where(coded, found.codes, _NO_CODE), np.arange(0, width, length), axis=1)
    base = np.where(least == _NO_CODE, 0, least)
    if not base.any() or int(np.abs(base).max()) > _MAX_BASE:
        return None
    counted = (found.codes - _spread(base, length, width))[coded]
    gain = _entropy(found.codes[coded]) - _entropy(counted) - _entropy(base)
    return base if gain > 64.0 else None


def _coded(found: Grouped) -> NDArray[np.bool_]:
    """Return which values have codes. On a line, zeros and escaped values have none."""
    away = (found.corrections == ESCAPE) | found.zeros
    return ~away if found.form else np.ones(away.shape, dtype=bool)


def _entropy(numbers: Array) -> float:
    counts = np.bincount((numbers - numbers.min()).ravel())
    counts = counts[counts > 0]
    return float(np.log2(counts.sum() / counts) @ counts)


def _precisions(found: Grouped) -> dict[int, int]:
    """Return {bits: weights}: the bits that hold all codes from the least to the largest of a group."""
    length, width = found.layout.length, found.codes.shape[1]
    starts = np.arange(0, width, length)
    low, high = (pick.reduceat(found.codes, starts, axis=1) for pick in (np.minimum, np.maximum))
    odd = np.bitwise_and.reduceat(found.codes | found.zeros, starts, axis=1) & 1  # every second code is in use
    wide = np.where(odd == 1, (high - low) // 2, high - low)
    bits = np.maximum(np.frexp(wide.astype(np.float64))[1], 1)
    sizes = np.broadcast_to(np.diff([*starts, width]), bits.shape)
    counts = np.bincount(bits.ravel(), weights=sizes.ravel())
    return {int(p): int(counts[p]) for p in np.flatnonzero(counts)}


def _vector(numbers: Floats) -> Coding:
    """Return the cheapest coding of steps or offsets (rows, groups in a row)."""
    words, shape = to_words(torch.from_numpy(np.ascontiguousarray(numbers))), numbers.shape
    if bool((words == words[0]).all()):
        return Constant(words, torch.float32)
    found: list[Coding] = [Dense(words, torch.float32)]
    binary = grids.read_binary(numbers.ravel())
    if binary is not None:
        found.append(Grid(*binary, shape))
    letters, places = np.unique(words, return_inverse=True)
    if letters.size <= words.size // 2:
        found.append(Codebook(letters, places.astype(np.int32), torch.float32, shape))
    if shape[1] > 2 and (stepped := grids.read_grid(numbers, (0,))) is not None and stepped.axis == 0:
        found.append(Steps(stepped))
    return min(found, key=lambda coding: coding.cost)


def _write_vector(coding: Coding, writer: PartsWriter) -> float:
    writer.index.number([known.name for known in PLAIN_CODINGS].index(coding.name))
    return float(sum(coding.write(writer)[:3]))


def _read_vector(reader: PartsReader, shape: tuple[int, int]) -> Floats:
    coding = PLAIN_CODINGS[reader.index.number(len(PLAIN_CODINGS) - 1)]
    words = np.empty(shape[0] * shape[1], dtype=np.uint32)
    coding.read(reader, shape, torch.float32, words)
    return words.view(np.float32).reshape(shape)
