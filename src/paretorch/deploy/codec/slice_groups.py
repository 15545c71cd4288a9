"""Groups of slices: which rows, columns or taps of a weight share a frequency table.

Precision and sparsity differ between channels (whole rows at one precision, or gone), between inputs, and between the
taps of a convolution. Slices along one axis are sorted into a few classes, each with its own table; the class of every
slice is stored. A row that is all zero then costs nothing, a row of one precision only its codes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paretorch.deploy.codec.entropy import Array

_MOST_CLASSES = 12
_MOST_CELLS = 1 << 21  # slices times alphabet: beyond it, counting costs more than it gains
MOST_SLICES = _MOST_CELLS // 2  # slices that may have classes: an alphabet has at least two letters
_CHUNK = 1 << 20  # symbols counted at once
_TABLE_BITS = 4.0  # of one entry of a further table, about


@dataclass(frozen=True)
class Groups:
    """The class of every slice along `axis` of the cube (outputs, inputs, taps)."""

    axis: int
    of: Array

    def members(self, label: int) -> tuple[slice | Array, ...]:
        """Return an index that selects the slices of one class."""
        index: list[slice | Array] = [slice(None)] * 3
        index[self.axis] = np.flatnonzero(self.of == label)
        return tuple(index)


def as_cube(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return (outputs, inputs, taps); a vector is all taps."""
    if len(shape) < 2:
        return (1, 1, int(np.prod(shape, dtype=np.int64)))
    return (shape[0], shape[1], int(np.prod(shape[2:], dtype=np.int64)))


def find_groups(symbols: Array, shape: tuple[int, int, int], levels: Array) -> tuple[Groups, Array] | None:
    """Return the classes that save most, and their counts (class, symbol); None if one table for all is as good."""
    size = levels.size
    best, best_gain, best_counts = None, 0.0, None
    for axis, length in enumerate(shape):
        if length < 2 or length * size > _MOST_CELLS or symbols.size // length < 4:
            continue
        counts = _histograms(symbols.reshape(shape), axis, size)
        if not _promising(counts):
            continue
        labels = _classes(counts, levels)
        merged = np.stack([counts[labels == label].sum(0) for label in range(labels.max() + 1)])
        gain = float(_bits(counts.sum(0)) - _bits(merged).sum()) - _map_bits(labels) - _tables(merged)
        if gain > best_gain:
            best, best_gain, best_counts = Groups(axis, labels), gain, merged
    return None if best is None or best_counts is None else (best, best_counts)


def _histograms(cube: Array, axis: int, size: int) -> Array:
    """Count (slice, symbol) in chunks of outputs: all at once would take many times the memory."""
    offset = np.arange(cube.shape[axis]).reshape([-1 if i == axis else 1 for i in range(3)]) * size
    counts = np.zeros(cube.shape[axis] * size, dtype=np.int64)
    step = max(1, _CHUNK * cube.shape[0] // cube.size)
    for start in range(0, cube.shape[0], step):
        own = offset[start : start + step] if axis == 0 else offset
        counts += np.bincount((cube[start : start + step] + own).ravel(), minlength=counts.size)
    return counts.reshape(-1, size)


def _bits(counts: Array) -> Array:
    """Return the bits (n times the entropy) of each row of counts, coded with its own frequencies."""
    total = counts.sum(-1)
    inner = counts * np.log2(np.maximum(counts, 1))
    return np.asarray(total * np.log2(np.maximum(total, 1)) - inner.sum(-1))


def _tables(counts: Array) -> float:
    """Return the bits of all tables but the first."""
    return float(_TABLE_BITS * (np.count_nonzero(counts) - counts.shape[-1]))


def _map_bits(labels: Array) -> float:
    used = np.bincount(labels)
    return float(_bits(used) + 8.0 * used.size)


def _promising(counts: Array) -> bool:
    """Return whether one table per slice saves more than fitting noise does, (symbols - 1) / 2 nats per slice."""
    free = counts.sum(0)
    gain = float(_bits(free) - _bits(counts).sum())
    used = np.minimum(np.count_nonzero(free), counts.sum(1)) - 1
    return bool(gain > 1.5 * float(used.sum()) * 0.72 + 32.0)


def _classes(counts: Array, levels: Array) -> Array:
    """Sort slices by finest precision and share of zeros, and merge classes as long as that saves bits."""
    zeros = counts[:, levels < 0].sum(1) / np.maximum(counts.sum(1), 1)
    present = counts > 0
    finest = np.where(present & (levels >= 0), levels, 99).min(1)
    edges = np.quantile(zeros, [0.25, 0.5, 0.75, 0.9]) if (levels < 0).any() else np.zeros(0)
    signature = finest * 8 + np.searchsorted(edges, zeros) + np.where(zeros == 1.0, 4, 0)
    labels = np.unique(signature, return_inverse=True)[1].ravel()
    labels = _merge(counts, labels)
    for _ in range(2):  # move every slice to the class that codes it best
        merged = np.stack([counts[labels == label].sum(0) for label in range(labels.max() + 1)]) + 1e-3
        lengths = np.log2(merged.sum(1, keepdims=True) / merged)
        labels = np.unique((counts @ lengths.T).argmin(1), return_inverse=True)[1].ravel()
    return labels


def _merge(counts: Array, labels: Array) -> Array:
    """Merge two classes as long as they cost less together, tables and map included, or there are too many."""
    tables = [counts[labels == label].sum(0) for label in range(labels.max() + 1)]
    names = list(range(len(tables)))
    while len(tables) > 1:
        stack = np.stack(tables)
        alone = _bits(stack) + _TABLE_BITS * np.count_nonzero(stack, axis=1)
        first, second = np.triu_indices(len(tables), 1)
        both = stack[first] + stack[second]
        loss = _bits(both) + _TABLE_BITS * np.count_nonzero(both, axis=1) - alone[first] - alone[second]
        pick = int(loss.argmin())
        if loss[pick] > 16.0 and len(tables) <= _MOST_CLASSES:
            break
        keep, drop = int(first[pick]), int(second[pick])
        tables[keep] = both[pick]
        labels = np.where(labels == names[drop], names[keep], labels)
        del tables[drop], names[drop]
    return np.unique(labels, return_inverse=True)[1].ravel()
