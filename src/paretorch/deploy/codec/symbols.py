"""Arrays of integers as symbols: the alphabet that occurs, a frequency for each symbol, and what both cost.

A finalized weight is w = v * 2**e with a small integer v: zero where it was dropped, odd at the finest precision of its
layer, even above it. One symbol per weight therefore carries mask, precision and code jointly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from paretorch.deploy.codec.entropy import MAX_DROP, Array, Decoder, Encoder, code_lengths, fit_drops
from paretorch.deploy.codec.groups import MOST_SLICES, Groups, find_groups, view3
from paretorch.deploy.codec.smooth import FALLS, MOST, fit_smooth, smooth_drops
from paretorch.deploy.codec.wire import ByteReader, ByteWriter
from paretorch.errors import ArtefactError

SPAN = 1 << 17  # the widest range of integers that is treated as symbols
_STEPS = (1, 4, 16)  # how finely frequencies may be stored, in sixteenths of an octave
_MOST_CLASSES = 64
_CHUNK = 1 << 20  # symbols looked up at once
_FEW = 8  # letters: with no more, a table is as small as any formula


@dataclass(frozen=True)
class Tables:
    """Alphabet (ascending), the drop of each symbol in each class (see entropy.frequencies), the classes of slices.

    Drops are stored one by one, in multiples of `step`, or given by a formula's numbers (see smooth) for each class.
    """

    alphabet: Array
    drops: Array
    step: int
    groups: Groups | None = None
    formula: Array | None = None


def levels(alphabet: Array) -> Array:
    """Trailing zero bits of each integer: weights of one precision share it. -1 for zero."""
    low = np.maximum(alphabet & -alphabet, 1).astype(np.float64)
    return np.where(alphabet == 0, -1, np.frexp(low)[1] - 1)  # frexp is exact everywhere, log2 need not be


def _order(alphabet: Array) -> Array:
    """Zero first, then precision by precision, by magnitude: neighbours in this order are about equally frequent."""
    return np.lexsort((alphabet < 0, np.abs(alphabet), levels(alphabet)))


def _deltas(alphabet: Array, drops: Array, step: int) -> Array:
    """What is stored of the drops: differences in units of the step, along _order, class by class."""
    return np.diff((drops // step)[:, _order(alphabet)].ravel(), prepend=0)


class Symbols:
    """An integer array of range < SPAN with the tables fitted to it, ready to be written."""

    def __init__(self, ints: Array, shape: tuple[int, ...] = ()) -> None:
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
        self._shape = view3(shape)
        self.counts = histogram[present][None]
        found = None
        if shape and present.size > 1:
            found = find_groups(self._symbols, self._shape, levels(alphabet))
        if found:
            self.counts = found[1]
        self.tables, bits = _fit(alphabet, self.counts, found[0] if found else None)
        if shape and present.size > _FEW and histogram.size <= MOST:
            counts = np.zeros((self.counts.shape[0], histogram.size), dtype=np.int64)
            counts[:, present] = self.counts
            tables, smooth_bits = _fit_smooth(np.arange(histogram.size) + low, counts, self.tables.groups)
            if smooth_bits < bits:
                self.tables, self.counts, bits = tables, counts, smooth_bits
                self._symbols = (ints.ravel() - low).astype(np.uint8 if histogram.size <= 256 else np.int32)
        self.cost = bits + self.map_bits  # an estimate, for choosing

    @property
    def bits(self) -> Array:
        """Bits spent on each symbol in each class."""
        return _bits(self.counts, self.tables.drops)

    @property
    def map_bits(self) -> float:
        groups = self.tables.groups
        return 0.0 if groups is None else float(Symbols(groups.of).bits.sum())

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
        index.number(0 if groups is None else groups.axis + 1)
        if groups is not None:
            Symbols(groups.of).write(index, coded)
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
                coded.add(cube[groups.members(label)].ravel(), drops)


def _chunks(flat: Array) -> Iterator[Array]:
    """Views of a part after the other: what is made of each, eight bytes a symbol, is never there for all at once."""
    return (flat[start : start + _CHUNK] for start in range(0, flat.size, _CHUNK))


def _bits(counts: Array, drops: Array) -> Array:
    lengths = np.stack([code_lengths(row) for row in drops])
    return np.asarray(counts * np.where(counts > 0, lengths, 0.0))


def _table_bits(alphabet: Array, drops: Array, step: int) -> float:
    deltas = np.abs(_deltas(alphabet, drops, step))
    gaps = np.diff(alphabet)
    return 24.0 + float(2.0 * np.log2(1.0 + gaps).sum() + (1.5 + 2.0 * np.log2(1.0 + deltas)).sum())


def _fit(alphabet: Array, counts: Array, groups: Groups | None) -> tuple[Tables, float]:
    """Frequencies as fine as pays: a wide alphabet with few samples gets coarse ones, which cost next to nothing."""
    best, least = None, np.inf
    for step in _STEPS:
        drops = np.stack([fit_drops(row, step) for row in counts])
        cost = float(_bits(counts, drops).sum()) + _table_bits(alphabet, drops, step)
        if cost < least:
            best, least = Tables(alphabet, drops, step, groups), cost
    assert best is not None
    return best, least


def _fit_smooth(alphabet: Array, counts: Array, groups: Groups | None) -> tuple[Tables, float]:
    """Frequencies by a formula, per class: the numbers are (drop + 1, fall) of each level."""
    rows = levels(alphabet)
    fitted = [fit_smooth(alphabet, rows, row) for row in counts]
    drops = np.stack([smooth_drops(alphabet, rows, *found) for found in fitted])
    formula = np.stack([np.stack([weights + 1, falls], axis=1) for weights, falls in fitted])
    tables = Tables(alphabet, drops, 1, groups, formula)
    return tables, float(_bits(counts, drops).sum()) + 24.0 + 8.0 * formula.size


def read_symbols(index: ByteReader, coded: Decoder, count: int, shape: tuple[int, ...] = ()) -> Tables:
    """The tables of an array of `count` integers; nothing of the array's size is allocated yet."""
    size = index.number(min(count, SPAN))
    first, smooth = index.signed(SPAN), size == 0
    if smooth:
        size = index.number(MOST)
        if size < 2:
            raise ArtefactError("the artefact holds an empty alphabet")
        alphabet = first + np.arange(size)
    else:
        gaps = index.numbers(size - 1, SPAN)
        alphabet = first + np.concatenate([[0], np.cumsum(gaps + 1)]).astype(np.int64)
    if size == 1:
        return Tables(alphabet, np.zeros((1, 1), dtype=np.int64), 1)
    axis = index.number(3 if shape else 0)
    groups, classes = None, 1
    if axis:
        length = view3(shape)[axis - 1]
        if length > MOST_SLICES:
            raise ArtefactError("the artefact sorts more slices of a tensor into classes than pays")
        inner = read_symbols(index, coded, length)
        of = np.empty(length, dtype=np.int64)
        take_symbols(coded, inner, inner.alphabet, of)
        classes = int(of.max()) + 1
        if of.min() < 0 or classes > _MOST_CLASSES:
            raise ArtefactError("the artefact sorts a tensor's slices into classes that cannot be")
        groups = Groups(axis - 1, of)
    if smooth:
        rows = levels(alphabet)
        formula = index.numbers(classes * 2 * (int(rows.max()) + 2), MAX_DROP + 1).reshape(classes, -1, 2)
        drops = np.stack([smooth_drops(alphabet, rows, part[:, 0] - 1, part[:, 1] % FALLS) for part in formula])
        step = 1
    else:
        step = index.number(MAX_DROP)
        deltas = index.numbers(classes * size, 4 * MAX_DROP + 1)
        deltas = np.where(deltas % 2 == 0, deltas // 2, -(deltas // 2) - 1)
        drops = np.empty((classes, size), dtype=np.int64)
        drops[:, _order(alphabet)] = np.cumsum(deltas).reshape(classes, size)
        drops = np.where(drops == -1, -1, drops * step)
    if drops.min() < -1 or drops.max() > MAX_DROP or (drops.max(1) < 0).any():
        raise ArtefactError("the artefact holds a frequency that cannot be")
    return Tables(alphabet, drops, step, groups)


def take_symbols(coded: Decoder, tables: Tables, values: Array, out: Array, shape: tuple[int, ...] = ()) -> None:
    """Decode as many symbols as `out` has room for, flat, each looked up in `values` (one per letter of the alphabet)."""
    if tables.groups is None:
        coded.take(tables.drops[0], values, out)
        return
    cube = out.reshape(view3(shape))
    for label, drops in enumerate(tables.drops):
        size = list(cube.shape)
        size[tables.groups.axis] = int(np.count_nonzero(tables.groups.of == label))
        part = np.empty(math.prod(size), dtype=out.dtype)
        coded.take(drops, values, part)
        cube[tables.groups.members(label)] = part.reshape(size)
