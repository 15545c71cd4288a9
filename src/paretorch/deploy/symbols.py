"""Arrays of integers as symbols: the alphabet that occurs, a frequency for each symbol, and what both cost.

A finalized weight is w = v * 2**e with a small integer v: zero where it was dropped, odd at the finest precision of its
layer, even above it. One symbol per weight therefore carries mask, precision and code jointly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paretorch.deploy.entropy import MAX_DROP, Array, code_lengths, fit_drops
from paretorch.deploy.wire import ByteReader, ByteWriter
from paretorch.errors import ArtefactError

SPAN = 1 << 17  # the widest range of integers that is treated as symbols
_FINE_FROM = 1 << 16  # from this many symbols on, finer frequencies pay for themselves


@dataclass(frozen=True)
class Model:
    """The symbols' integers, ascending, and their frequencies as drops (see entropy.frequencies)."""

    alphabet: Array
    drops: Array
    coarse: int

    def bits(self, counts: Array) -> Array:
        """Bits spent on each symbol of the alphabet, given how often each occurs."""
        lengths = code_lengths(self.drops)
        return np.where(counts > 0, counts * np.where(np.isfinite(lengths), lengths, 0.0), 0.0)


def levels(alphabet: Array) -> Array:
    """Trailing zero bits of each integer: weights of one precision share it. -1 for zero."""
    low = alphabet & -alphabet
    return np.where(alphabet == 0, -1, np.log2(np.maximum(low, 1)).astype(np.int64))


def fit(ints: Array) -> tuple[Model, Array, Array]:
    """The model of an integer array of range < SPAN, the symbols, and the count of each symbol."""
    low = int(ints.min())
    histogram = np.bincount(ints.ravel() - low)
    present = np.flatnonzero(histogram)
    lookup = np.zeros(histogram.size, dtype=np.uint8 if present.size <= 256 else np.int32)
    lookup[present] = np.arange(present.size)
    counts = histogram[present]
    coarse = 1 if ints.size >= _FINE_FROM else 4
    return Model(present + low, fit_drops(counts, coarse), coarse), lookup[ints.ravel() - low], counts


def _order(alphabet: Array) -> Array:
    """Zero first, then precision by precision, by magnitude: neighbours in this order are about equally frequent."""
    return np.lexsort((alphabet < 0, np.abs(alphabet), levels(alphabet)))


def write_model(out: ByteWriter, model: Model) -> None:
    out.number(model.alphabet.size)
    out.signed(int(model.alphabet[0]))
    for gap in np.diff(model.alphabet):
        out.number(int(gap) - 1)
    if model.alphabet.size > 1:
        out.number(model.coarse)
        previous = 0
        for drop in model.drops[_order(model.alphabet)] // model.coarse:
            out.signed(int(drop) - previous)
            previous = int(drop)


def read_model(reader: ByteReader, most: int) -> Model:
    """`most`: how many symbols are coded; an alphabet cannot be larger."""
    size = reader.number(min(most, SPAN))
    if size == 0:
        raise ArtefactError("the artefact holds an empty alphabet")
    first = reader.signed(2**40)
    gaps = [reader.number(SPAN) + 1 for _ in range(size - 1)]
    alphabet = first + np.concatenate([[0], np.cumsum(gaps, dtype=np.int64)]).astype(np.int64)
    drops, coarse = np.zeros(size, dtype=np.int64), 1
    if size > 1:
        coarse = reader.number(MAX_DROP)
        deltas = np.array([reader.signed(MAX_DROP) for _ in range(size)], dtype=np.int64)
        drops[_order(alphabet)] = np.cumsum(deltas) * coarse
        if drops.min() < 0 or drops.max() > MAX_DROP:
            raise ArtefactError("the artefact holds a frequency that cannot be")
    return Model(alphabet, drops, coarse)
