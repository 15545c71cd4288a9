"""Classes of slices: which rows, columns, taps or blocks of a weight share a frequency table.

Precision and sparsity differ between channels (whole rows at one precision, or gone), between inputs, between the taps of a
convolution, and between blocks of any shape. The slices of a weight are sorted into a few classes, each with its own table; the
class of every slice is stored. A slice of zeros then takes no bits, a slice of one precision only those of its codes, and the map
of classes takes its entropy. The classes are learned from the histograms of a sample of slices; then every slice joins the class
that codes it best, so that any number of slices is possible.

A class begins as the slices of one finest precision, number of symbols and share of zeros. Classes are merged as long as that
saves bits. Then slices move to the class that codes them best, including the bits that name the class.

The shape of blocks is guessed from where the precision of neighbours changes: inside a block neighbours are alike more often than
across its edge. For every length up to a limit the pairs at the edges that it would have are compared with all other pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paretorch.deploy.codec.streams import Array, bits_of

Cube = tuple[int, int, int]

_MAX_CELLS = (
    1 << 21
)  # slices times letters that are counted to learn classes; beyond it letters are pooled, slices sampled
MAX_SLICES = 1 << 20  # slices that may have classes even if they are small, as in files of older versions
MIN_SLICE = 4  # values in a slice, on average: smaller ones do not pay for a class
_CHUNK = 1 << 20  # symbols counted at once
_TABLE_BITS = 4.0  # of one entry of a further table, about
_MAX_CLASSES = 12
_MAX_KINDS = 48  # of slices, before classes are merged
_ROUNDS = 3  # in which slices move to the class that codes them best
_SAMPLE = 1 << 18  # neighbours that are compared to guess the shape of blocks
_RUN = 256  # neighbouring outputs in one part of that sample
_LONGEST = 1024  # side of a block
_CLEAR = 6.0  # standard errors


@dataclass(frozen=True)
class Groups:
    """The class of every block of the cube (outputs, inputs, taps); blocks at the far edges may be smaller.

    Args:
        block: The shape of a block. Blocks of whole rows, columns or taps are slices along one axis.
        of: The class of each block, by its place (outputs, inputs, taps).
    """

    block: Cube
    of: Array

    @property
    def axis(self) -> int | None:
        """The axis, if blocks are slices along one, else None."""
        along = [i for i in range(3) if self.of.shape[i] > 1]
        return along[0] if len(along) == 1 and self.block[along[0]] == 1 else None

    def members(self, label: int, shape: Cube) -> tuple[slice | Array, ...] | Array:
        """Return an index that selects the values of one class."""
        axis = self.axis
        if axis is None:
            return spread(self.of == label, self.block, shape)
        index: list[slice | Array] = [slice(None)] * 3
        index[axis] = np.flatnonzero(self.of.ravel() == label)
        return tuple(index)


def levels_of(alphabet: Array) -> Array:
    """Return the number of trailing zero bits of each integer, equal for weights of one precision; -1 for zero."""
    low = np.maximum(alphabet & -alphabet, 1).astype(np.float64)
    return np.where(alphabet == 0, -1, np.frexp(low)[1] - 1)  # frexp is exact on every machine, log2 need not be


def as_cube(shape: tuple[int, ...]) -> Cube:
    """Return (outputs, inputs, taps); a vector is all taps."""
    if len(shape) < 2:
        return (1, 1, int(np.prod(shape, dtype=np.int64)))
    return (shape[0], shape[1], int(np.prod(shape[2:], dtype=np.int64)))


def axis_block(axis: int, shape: Cube) -> Cube:
    """Return the block that is one slice along the axis."""
    first, second, third = (1 if i == axis else max(length, 1) for i, length in enumerate(shape))
    return (first, second, third)


def places(block: Cube, shape: Cube) -> Cube:
    """Return how many blocks there are along each axis."""
    first, second, third = (-(-length // size) for length, size in zip(shape, block, strict=True))
    return (first, second, third)


def spread(of: Array, block: Cube, shape: Cube) -> Array:
    """Return one number per block as one per value."""
    for axis in range(3):
        if of.shape[axis] > 1 and block[axis] > 1:
            of = np.repeat(of, block[axis], axis=axis)
        of = of[tuple(slice(shape[i]) if i == axis else slice(None) for i in range(3))]
    return np.broadcast_to(of, shape)


def find_groups(
    symbols: Array, shape: Cube, alphabet: Array, total: Array, block: Cube | None = None
) -> tuple[Groups, Array] | None:
    """Return the classes that save most bits, and their counts (class, symbol); None if one table for all is as good.

    Args:
        alphabet: The integer of each symbol.
        total: How often each symbol occurs.
        block: The shape of blocks, if known; else shapes are guessed from the values.
    """
    cube, levels = symbols.reshape(shape), levels_of(alphabet)
    known = [axis_block(axis, shape) for axis in range(3)]
    known += [block] if block is not None else _block_shapes(cube, levels)
    best, best_gain, best_counts = None, 0.0, None
    for own in dict.fromkeys(known):
        count = int(np.prod(places(own, shape)))
        if count < 2 or symbols.size // count < MIN_SLICE:
            continue
        labels = _classify(cube, own, alphabet, levels)
        if labels is None:
            continue
        # The last assignment may leave a class without slices: it has no table, and no number.
        labels = np.unique(labels, return_inverse=True)[1].reshape(labels.shape).astype(np.uint8)
        counts = _histogram(cube, own, np.arange(levels.size), labels)
        gain = float(bits_of(total) - bits_of(counts).sum()) - _map_bits(labels) - _tables(counts)
        if gain > best_gain:
            best, best_gain, best_counts = Groups(own, labels), gain, counts
    return None if best is None or best_counts is None else (best, best_counts)


def _classify(cube: Array, block: Cube, alphabet: Array, levels: Array) -> Array | None:
    """Return the class of every block; None if classes would not pay."""
    shape: Cube = cube.shape
    grid = places(block, shape)
    count = int(np.prod(grid))
    pool = np.arange(levels.size)
    if count * levels.size > _MAX_CELLS:  # count letters of one precision and about one magnitude as one
        wide = np.frexp(np.abs(alphabet).astype(np.float64))[1]
        pool = np.unique(np.stack([levels, wide]), axis=1, return_inverse=True)[1].ravel()
    size = int(pool.max()) + 1
    pooled = np.full(size, -1)
    pooled[pool] = levels
    width = np.bincount(pool)
    if block[0] >= shape[0]:
        counts = _histogram(cube, block, pool)
        tables = _learn_classes(counts, pooled, width) if _is_promising(counts) else None
        return None if tables is None else _assign(counts, tables).reshape(grid)
    parts = list(_row_parts(shape, block[0], max(block[0], _MAX_CELLS // size * block[0] * grid[0] // count)))
    stride = max(1, -(-count * size // _MAX_CELLS))
    sample = [_histogram(cube[part], block, pool) for part in parts[::stride]]
    counts = np.concatenate(sample)
    tables = _learn_classes(counts, pooled, width) if _is_promising(counts) else None
    if tables is None:
        return None
    if stride == 1:
        return _assign(counts, tables).reshape(grid)
    return np.concatenate([_assign(_histogram(cube[part], block, pool), tables) for part in parts]).reshape(grid)


def _is_promising(counts: Array) -> bool:
    """Return whether one table per slice saves more than noise would: (symbols - 1) / 2 nats per slice."""
    free = counts.sum(0)
    gain = float(bits_of(free) - bits_of(counts).sum())
    used = np.minimum(np.count_nonzero(free), counts.sum(1)) - 1
    return bool(gain > 1.5 * float(used.sum()) * 0.72 + 32.0)


def _row_parts(shape: Cube, rows: int, most: int) -> Iterator[slice]:
    """Yield ranges of outputs with whole blocks, each of at most `most` outputs or a chunk of values."""
    size = max(1, min(most, _CHUNK // max(shape[1] * shape[2], 1)) // rows) * rows
    return (slice(start, start + size) for start in range(0, shape[0], size))


def _histogram(cube: Array, block: Cube, pool: Array, labels: Array | None = None) -> NDArray[np.int64]:
    """Count (block, pooled symbol), or (class, pooled symbol) if classes are given; a chunk of outputs at a time."""
    shape: Cube = cube.shape
    grid = places(block, shape)
    size = int(pool.max()) + 1
    of = np.arange(int(np.prod(grid))).reshape(grid) if labels is None else labels.astype(np.int64)
    counts = np.zeros((int(of.max()) + 1) * size, dtype=np.int64)
    for part in _row_parts(shape, block[0] if grid[0] > 1 else 1, shape[0]):
        inner = of[part.start // block[0] : -(-part.stop // block[0])] if grid[0] > 1 else of
        own = cube[part]
        offset = spread(inner, block if grid[0] > 1 else (1, *block[1:]), own.shape) * size
        counts += np.bincount((pool[own] + offset).ravel(), minlength=counts.size)
    return counts.reshape(-1, size)


def _tables(counts: Array) -> float:
    """Return the bits of all tables but the first."""
    return float(_TABLE_BITS * (np.count_nonzero(counts) - counts.shape[-1]))


def _map_bits(labels: Array) -> float:
    used = np.bincount(labels.ravel())
    return float(bits_of(used) + 8.0 * used.size)


def _assign(counts: Array, tables: Array) -> NDArray[np.uint8]:
    """Return for each slice the class that codes it in the fewest bits; the names of frequent classes take fewer."""
    return np.asarray((counts @ _lengths(tables).T + _naming(tables)).argmin(1), dtype=np.uint8)


def _learn_classes(counts: Array, levels: Array, letters: Array) -> Array:
    """Return the tables (class, symbol) of the classes.

    Args:
        levels: Of each symbol: trailing zero bits, -1 for zero.
        letters: How many letters each symbol stands for, for the cost of a table.
    """
    labels = _merge(counts, _kinds(counts, levels), letters)
    for _ in range(_ROUNDS):
        labels = np.unique(_assign(counts, _class_tables(counts, labels)), return_inverse=True)[1].ravel()
    return _class_tables(counts, labels)


def _class_tables(counts: Array, labels: Array) -> Array:
    """Return the counts of each class, and as a last column how many slices it has."""
    merged = np.zeros((int(labels.max()) + 1, counts.shape[1] + 1))
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(len(merged)))
    merged[:, :-1] = np.add.reduceat(counts[order], starts, axis=0)
    merged[:, -1] = np.bincount(labels)
    return merged


def _lengths(tables: Array) -> Array:
    """Return the bits of each symbol in each class; very many for symbols that the class does not have."""
    counts = tables[:, :-1] + 1e-3
    return np.asarray(np.log2(counts.sum(1, keepdims=True) / counts))


def _naming(tables: Array) -> Array:
    """Return the bits that name each class."""
    return np.asarray(np.log2(tables[:, -1].sum() / tables[:, -1]))


def _kinds(counts: Array, levels: Array) -> Array:
    """Sort slices by finest precision, number of symbols and share of zeros."""
    zeros = counts[:, levels < 0].sum(1) / np.maximum(counts.sum(1), 1)
    present = counts > 0
    finest = np.where(present & (levels >= 0), levels, 99).min(1)
    edges = np.quantile(zeros, [0.25, 0.5, 0.75, 0.9]) if (levels < 0).any() else np.zeros(0)
    rich = np.frexp(np.count_nonzero(present, axis=1).astype(np.float64))[1]
    signature = (finest * 32 + rich) * 8 + np.searchsorted(edges, zeros) + np.where(zeros == 1.0, 4, 0)
    kinds, labels, sizes = np.unique(signature, return_inverse=True, return_counts=True)
    if kinds.size > _MAX_KINDS:  # a rare kind joins the next common kind
        common = np.sort(np.argsort(-sizes)[:_MAX_KINDS])
        labels = np.searchsorted(common, labels.ravel()).clip(max=_MAX_KINDS - 1)
    return np.unique(labels, return_inverse=True)[1].ravel()


def _merge(counts: Array, labels: Array, letters: Array) -> Array:
    """Merge two classes as long as they cost less together, tables and map included, or there are too many."""
    tables = list(_class_tables(counts, labels)[:, :-1])
    names = list(range(len(tables)))
    renamed = np.arange(len(tables))
    while len(tables) > 1:
        stack = np.stack(tables)
        alone = bits_of(stack) + _TABLE_BITS * ((stack > 0) @ letters)
        first, second = np.triu_indices(len(tables), 1)
        both = stack[first] + stack[second]
        loss = bits_of(both) + _TABLE_BITS * ((both > 0) @ letters) - alone[first] - alone[second]
        pick = int(loss.argmin())
        if loss[pick] > 16.0 and len(tables) <= _MAX_CLASSES:
            break
        keep, drop = int(first[pick]), int(second[pick])
        tables[keep] = both[pick]
        renamed[renamed == names[drop]] = names[keep]
        del tables[drop], names[drop]
    return np.unique(renamed[labels], return_inverse=True)[1].ravel()


def _block_shapes(cube: Array, levels: Array) -> list[Cube]:
    """Return likely shapes of blocks (outputs, inputs, taps); none if neighbours are equally alike everywhere."""
    outputs, inputs, taps = cube.shape
    if inputs < 4:
        return []
    run = max(1, min(_RUN, outputs, _SAMPLE // max(inputs * taps, 1)))
    parts = max(1, min(outputs // run, _SAMPLE // max(run * inputs * taps, 1)))
    starts = np.unique(np.linspace(0, outputs - run, parts).astype(np.int64) // run * run)
    kinds = [levels[cube[start : start + run]] for start in starts]
    wide = _period(
        np.mean([(part[:, 1:] == part[:, :-1]).mean((0, 2)) for part in kinds], axis=0), run * taps * len(starts)
    )
    tall = None
    if run > 3:
        alike = np.mean([(part[1:] == part[:-1]).mean((1, 2)) for part in kinds], axis=0)
        tall = _period(alike, inputs * taps * len(starts))
    found: list[Cube] = []
    if wide is not None:
        found += [(1, wide, taps), *([(tall, wide, taps)] if tall is not None else [])]
    if tall is not None:
        found += [(tall, 1, taps)]
    return found


def _period(alike: Array, pairs: int) -> int | None:
    """Return the length at whose multiples neighbours are clearly less often equal; None if there is none.

    Args:
        alike: Share of equal neighbours between places i and i + 1.
        pairs: Pairs that each share was counted from.
    """
    error = np.sqrt(max(alike.mean() * (1 - alike.mean()), 1e-9) / pairs)
    best, clearest = None, _CLEAR
    for length in range(2, min(_LONGEST, alike.size) + 1):
        edges = alike[length - 1 :: length]
        if edges.size == alike.size:
            continue
        inside = (alike.sum() - edges.sum()) / (alike.size - edges.size)
        clear = (inside - edges.mean()) / error * np.sqrt(edges.size)
        if clear > clearest:
            best, clearest = length, float(clear)
    return best
