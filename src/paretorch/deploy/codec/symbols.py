"""Arrays of integers as symbols: the alphabet, a frequency for each symbol, and the bits that they take.

A finalized weight is w = v * 2**e with a small integer v: zero if it was dropped, odd at the finest precision of its
layer, even above it. One symbol per weight therefore carries mask, precision and code jointly.

Frequencies are stored as a table, or given by a formula for wide alphabets with few samples, for which a table would cost
as much as it saves. With a formula every integer between the lowest and the highest belongs to the alphabet. Within a precision
(integers with the same number of trailing zeros) the frequency falls with the magnitude, 2 ** -(a |v|) or 2 ** -(a v**2): two
small numbers per precision, its weight and its fall, instead of one number per integer. All arithmetic is in integers, so that
every machine gets the same frequencies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

import numpy as np

from paretorch.deploy.codec.slice_groups import (
    MAX_SLICES,
    MIN_SLICE,
    Cube,
    Groups,
    as_cube,
    axis_block,
    find_groups,
    levels_of,
    places,
)
from paretorch.deploy.codec.streams import (
    MAX_DROP,
    Array,
    ByteReader,
    ByteWriter,
    Decoder,
    Encoder,
    code_lengths,
    fit_drops,
)
from paretorch.errors import ArtefactError

SPAN = 1 << 17  # the widest range of integers that can be symbols
_TABLE_STEPS = (1, 4, 16)  # resolutions of stored frequencies, in sixteenths of an octave
_MAX_CLASSES = 64
_BLOCKS = 4  # in place of 1 + axis: classes of blocks
_CHUNK = 1 << 20  # symbols per lookup
_FEW = 8  # letters: a table of up to so many is as small as any formula
_FALLS = 64  # 0: flat; 1 .. 31: with |v|; 32 .. 63: with v**2
_MAX_FORMULA = 1 << 12  # integers in such an alphabet
_OCTAVE = 16  # drops are in sixteenths of an octave


@dataclass(frozen=True)
class Tables:
    """The alphabet (ascending), the drop of each symbol in each class (see entropy.frequencies), the classes of slices.

    Drops are stored one by one, in multiples of `step`, or as the two numbers per precision of a formula, for each class.
    """

    alphabet: Array
    drops: Array
    step: int
    groups: Groups | None = None
    formula: Array | None = None


def _order(alphabet: Array) -> Array:
    """Zero first, then by precision and magnitude: neighbours in this order are about equally frequent."""
    return np.lexsort((alphabet < 0, np.abs(alphabet), levels_of(alphabet)))


def _deltas(alphabet: Array, drops: Array, step: int) -> Array:
    """Return what is stored of the drops: differences in units of the step, along `_order`, class by class."""
    return np.diff((drops // step)[:, _order(alphabet)].ravel(), prepend=0)


class Symbols:
    """An integer array of range < SPAN, with the tables fitted to it, ready to be written.

    Args:
        shape: The shape of the array, if its slices may have tables of their own.
        block: How many neighbours along the second axis form a block; else shapes of blocks are guessed.
        nested: Whether this is a map of blocks, which has no map of its own.
    """

    def __init__(
        self, ints: Array, shape: tuple[int, ...] = (), block: int | None = None, nested: bool = False
    ) -> None:
        low, high, flat = int(ints.min()), int(ints.max()), ints.ravel()
        histogram = np.zeros(high - low + 1, dtype=np.int64)
        for part in _chunks(flat):
            histogram += np.bincount(part - low, minlength=histogram.size)
        present = np.flatnonzero(histogram)
        lookup = np.zeros(histogram.size, dtype=np.uint8 if present.size <= 256 else np.int32)
        lookup[present] = np.arange(present.size)
        alphabet = present + low
        self._symbols = np.empty(flat.size, dtype=lookup.dtype)
        for part, symbols in zip(_chunks(flat), _chunks(self._symbols), strict=True):
            symbols[:] = lookup[part - low]
        self._shape = as_cube(shape)
        self.counts = histogram[present][None]
        found = None
        if shape and present.size > 1:
            known: Cube | None = None if block is None else (1, min(block, self._shape[1]), self._shape[2])
            if nested:
                known = self._shape  # one block: slices only
            found = find_groups(self._symbols, self._shape, alphabet, self.counts[0], known)
        if found:
            self.counts = found[1]
        self.tables, bits = _fit(alphabet, self.counts, found[0] if found else None)
        if shape and present.size > _FEW and histogram.size <= _MAX_FORMULA:
            counts = np.zeros((self.counts.shape[0], histogram.size), dtype=np.int64)
            counts[:, present] = self.counts
            tables, smooth_bits = _fit_formula(np.arange(histogram.size) + low, counts, self.tables.groups)
            if smooth_bits < bits:
                self.tables, self.counts, bits = tables, counts, smooth_bits
                self._symbols = (ints.ravel() - low).astype(np.uint8 if histogram.size <= 256 else np.int32)
        self.cost = bits + self.map_bits  # an estimate, to choose by

    @property
    def bits(self) -> Array:
        """Bits spent on each symbol in each class."""
        return _bits(self.counts, self.tables.drops)

    @property
    def map_bits(self) -> float:
        groups = self.tables.groups
        return 0.0 if groups is None else float(_map(groups).bits.sum()) + _map(groups).map_bits

    def write(self, index: ByteWriter, coded: Encoder) -> None:
        tables, groups = self.tables, self.tables.groups
        index.number(0 if tables.formula is not None else tables.alphabet.size)
        index.signed(int(tables.alphabet[0]))
        if tables.formula is not None:
            index.number(tables.alphabet.size)
        else:
            for gap in np.diff(tables.alphabet):
                index.number(int(gap) - 1)
        if tables.alphabet.size == 1:
            return
        axis = None if groups is None else groups.axis
        index.number(0 if groups is None else _BLOCKS if axis is None else axis + 1)
        if groups is not None:
            for length in groups.block if axis is None else ():
                index.number(length - 1)
            _map(groups).write(index, coded)
        if tables.formula is not None:
            for value in tables.formula.ravel():
                index.number(int(value))
        else:
            index.number(tables.step)
            for delta in _deltas(tables.alphabet, tables.drops, tables.step):
                index.signed(int(delta))
        if groups is None:
            coded.add(self._symbols, tables.drops[0])
        else:
            cube = self._symbols.reshape(self._shape)
            for label, drops in enumerate(tables.drops):
                coded.add(cube[groups.members(label, self._shape)].ravel(), drops)


def _map(groups: Groups) -> Symbols:
    """Return the classes as symbols. Those of blocks may be alike in a row or column."""
    of = groups.of.astype(np.int32)
    return Symbols(of.ravel(), of.shape if groups.axis is None else (), nested=True)


def _chunks(flat: Array) -> Iterator[Array]:
    """Yield views of one chunk after another, because temporaries take eight bytes per symbol."""
    return (flat[start : start + _CHUNK] for start in range(0, flat.size, _CHUNK))


def _bits(counts: Array, drops: Array) -> Array:
    lengths = np.stack([code_lengths(row) for row in drops])
    return np.asarray(counts * np.where(counts > 0, lengths, 0.0))


def _table_bits(alphabet: Array, drops: Array, step: int) -> float:
    deltas = np.abs(_deltas(alphabet, drops, step))
    gaps = np.diff(alphabet)
    return 24.0 + float(2.0 * np.log2(1.0 + gaps).sum() + (1.5 + 2.0 * np.log2(1.0 + deltas)).sum())


def _fit(alphabet: Array, counts: Array, groups: Groups | None) -> tuple[Tables, float]:
    """Fit tables at the best resolution: coarse frequencies take few bits, fine ones code many samples better."""
    best, least = None, np.inf
    for step in _TABLE_STEPS:
        drops = np.stack([fit_drops(row, step) for row in counts])
        cost = float(_bits(counts, drops).sum()) + _table_bits(alphabet, drops, step)
        if cost < least:
            best, least = Tables(alphabet, drops, step, groups), cost
    assert best is not None
    return best, least


def _fit_formula(alphabet: Array, counts: Array, groups: Groups | None) -> tuple[Tables, float]:
    """Fit the formula per class; its numbers are (drop + 1, fall) of each level."""
    rows = levels_of(alphabet)
    fitted = [_fit_falls(alphabet, rows, row) for row in counts]
    drops = np.stack([_formula_drops(alphabet, rows, *found) for found in fitted])
    formula = np.stack([np.stack([weights + 1, falls], axis=1) for weights, falls in fitted])
    tables = Tables(alphabet, drops, 1, groups, formula)
    return tables, float(_bits(counts, drops).sum()) + 24.0 + 8.0 * formula.size


def read_tables(
    index: ByteReader, coded: Decoder, count: int, shape: tuple[int, ...] = (), nested: bool = False
) -> Tables:
    """Read the tables of an array of `count` integers; nothing of the array's size is allocated yet.

    Args:
        nested: Whether this is a map of blocks, which has no map of its own.
    """
    size = index.number(min(count, SPAN))
    first, smooth = index.signed(SPAN), size == 0
    if smooth:
        size = index.number(_MAX_FORMULA)
        if size < 2:
            raise ArtefactError("The artefact holds an empty alphabet")
        alphabet = first + np.arange(size)
    else:
        gaps = index.numbers(size - 1, SPAN)
        alphabet = first + np.concatenate([[0], np.cumsum(gaps + 1)]).astype(np.int64)
    if size == 1:
        return Tables(alphabet, np.zeros((1, 1), dtype=np.int64), 1)
    groups = _read_groups(index, coded, as_cube(shape), nested) if shape else None
    if not shape:
        index.number(0)  # no classes
    classes = 1 if groups is None else int(groups.of.max()) + 1
    if smooth:
        rows = levels_of(alphabet)
        formula = index.numbers(classes * 2 * (int(rows.max()) + 2), MAX_DROP + 1).reshape(classes, -1, 2)
        drops = np.stack([_formula_drops(alphabet, rows, part[:, 0] - 1, part[:, 1] % _FALLS) for part in formula])
        step = 1
    else:
        step = index.number(MAX_DROP)
        deltas = index.numbers(classes * size, 4 * MAX_DROP + 1)
        deltas = np.where(deltas % 2 == 0, deltas // 2, -(deltas // 2) - 1)
        drops = np.empty((classes, size), dtype=np.int64)
        drops[:, _order(alphabet)] = np.cumsum(deltas).reshape(classes, size)
        drops = np.where(drops == -1, -1, drops * step)
    if drops.min() < -1 or drops.max() > MAX_DROP or (drops.max(1) < 0).any():
        raise ArtefactError("The artefact holds an impossible frequency")
    return Tables(alphabet, drops, step, groups)


def _read_groups(index: ByteReader, coded: Decoder, shape: Cube, nested: bool) -> Groups | None:
    kind = index.number(3 if nested else _BLOCKS)
    if kind == 0:
        return None
    if kind == _BLOCKS:
        block: Cube = tuple(1 + index.number(max(length, 1) - 1) for length in shape)  # type: ignore[assignment]
    else:
        block = axis_block(kind - 1, shape)
    grid = places(block, shape)
    count = math.prod(grid)
    if (kind == _BLOCKS or count > MAX_SLICES) and math.prod(shape) // max(count, 1) < MIN_SLICE:
        raise ArtefactError("The artefact sorts too small slices of a tensor into classes")
    inner = read_tables(index, coded, count, grid if kind == _BLOCKS else (), nested=True)
    if inner.alphabet[0] < 0 or inner.alphabet[-1] >= _MAX_CLASSES:
        raise ArtefactError("The artefact sorts a tensor's slices into impossible classes")
    of = np.empty(count, dtype=np.uint8)
    decode_symbols(coded, inner, inner.alphabet.astype(np.uint8), of, grid if kind == _BLOCKS else ())
    return Groups(block, of.reshape(grid))


def decode_symbols(coded: Decoder, tables: Tables, values: Array, out: Array, shape: tuple[int, ...] = ()) -> None:
    """Fill `out` (flat) with decoded symbols, looked up in `values` (one per letter of the alphabet)."""
    if tables.groups is None:
        coded.take(tables.drops[0], values, out)
        return
    cube = out.reshape(as_cube(shape))
    for label, drops in enumerate(tables.drops):
        members = tables.groups.members(label, cube.shape)
        size = np.count_nonzero(tables.groups.of == label) if tables.groups.axis is not None else 0
        if isinstance(members, tuple):
            part_shape = [size if i == tables.groups.axis else length for i, length in enumerate(cube.shape)]
        else:
            part_shape = [np.count_nonzero(members)]
        part = np.empty(math.prod(part_shape), dtype=out.dtype)
        coded.take(drops, values, part)
        cube[members] = part.reshape(part_shape)


def _fall(magnitudes: Array, fall: int) -> Array:
    """Return the drop that the magnitude adds."""
    if fall == 0:
        return np.zeros_like(magnitudes)
    if fall < 32:
        return np.asarray(np.minimum(magnitudes * isqrt(1 << fall) >> 8, MAX_DROP))
    return np.asarray(np.minimum(magnitudes**2 * isqrt(1 << (fall - 31)) >> 14, MAX_DROP))


def _formula_drops(alphabet: Array, levels: Array, weights: Array, falls: Array) -> Array:
    """Return the drop of each integer, from the drop (-1: does not occur) and the fall of each level, from level -1 on."""
    drops = np.full(alphabet.size, -1, dtype=np.int64)
    for level, (weight, fall) in enumerate(zip(weights.tolist(), falls.tolist(), strict=True), start=-1):
        if weight >= 0:
            here = levels == level
            drops[here] = np.minimum(weight + _fall(np.abs(alphabet[here]), fall), MAX_DROP)
    return drops


def _fit_falls(alphabet: Array, levels: Array, counts: Array) -> tuple[Array, Array]:
    """Return the weight and the fall of each level that code the counts in the fewest bits."""
    top = int(levels.max())
    falls = np.zeros(top + 2, dtype=np.int64)
    shares = np.full(top + 2, np.inf)  # -log2 of the frequency at magnitude 0, up to a constant
    for level in range(-1, top + 1):
        here = levels == level
        n = float(counts[here].sum())
        if n == 0:
            continue
        magnitudes = np.abs(alphabet[here])
        added = (
            np.stack([_fall(magnitudes, fall) for fall in range(_FALLS)]) / _OCTAVE if level >= 0 else np.zeros((1, 1))
        )
        mass = np.log2((2.0**-added).sum(1))
        best = int((added @ counts[here] + n * mass).argmin())
        falls[level + 1] = best
        shares[level + 1] = mass[best] - np.log2(n)
    drops = np.rint((shares - shares.min()) * _OCTAVE)
    return np.where(np.isfinite(drops), np.minimum(drops, MAX_DROP), -1).astype(np.int64), falls
