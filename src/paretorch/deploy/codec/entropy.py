"""The entropy coder: constriction's ANS behind two small classes, one coder for a whole file.

ANS is a stack. The encoder collects runs of symbols and pushes them last run first, so that the decoder pops them in
file order. One coder for all tensors costs one partly filled word instead of one per tensor.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paretorch.errors import ArtefactError

Array = NDArray[Any]

_CHUNK = 1 << 18  # symbols handed to the coder at once: int32 copies stay at 1 MiB
_STEPS = 16  # frequencies are powers of 2 ** (-1/16)
MAX_DROP = 24 * _STEPS  # constriction's probabilities have 24 bits


def _roots() -> list[int]:
    """Return floor(2 ** (24 - i/16)), computed in integers: floats could differ between machines."""
    return [isqrt(isqrt(isqrt(isqrt(1 << (24 * _STEPS - i))))) for i in range(_STEPS)]


_ROOTS = np.array(_roots(), dtype=np.int64)


def frequencies(drops: Array) -> Array:
    """Return the frequencies 2 ** (24 - drop/16) of a model, at least 1; a negative drop: the symbol does not occur."""
    drops = np.asarray(drops, dtype=np.int64)
    table = _ROOTS[drops % _STEPS] >> np.clip(drops // _STEPS, 0, 24)
    return np.where(drops < 0, 0, np.maximum(table, 1))


def fit_drops(counts: Array, coarse: int) -> Array:
    """Return the drops nearest to the counts of a sample, in multiples of `coarse` sixteenths of an octave."""
    counts = np.asarray(counts, dtype=np.float64)
    with np.errstate(divide="ignore"):
        drops = np.rint(np.log2(counts.max(initial=1.0) / counts) * (_STEPS / coarse)) * coarse
    return np.where(counts > 0, np.minimum(drops, MAX_DROP), -1).astype(np.int64)


def code_lengths(drops: Array) -> NDArray[np.float64]:
    """Return the bits per symbol under the model; infinite if it does not occur, zero if it is the only symbol."""
    table = frequencies(drops).astype(np.float64)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log2(table.sum() / table))


def bits_of(counts: Array) -> Array:
    """Return the bits (n times the entropy) of each row of counts, coded with its own frequencies."""
    total = counts.sum(-1)
    inner = counts * np.log2(np.maximum(counts, 1))
    return np.asarray(total * np.log2(np.maximum(total, 1)) - inner.sum(-1))


def _coder(words: Array | None = None) -> Any:
    from constriction import stream

    return stream.stack.AnsCoder() if words is None else stream.stack.AnsCoder(words)


def _model(drops: Array) -> Any:
    from constriction import stream

    # float64 holds these integers and their sums exactly: every machine builds the same model
    return stream.model.Categorical(frequencies(drops).astype(np.float64), perfect=False)


def _needs_coding(drops: Array) -> bool:
    return int(np.count_nonzero(np.asarray(drops) >= 0)) > 1


class Encoder:
    """Collects runs of symbols 0 .. len(drops)-1 with their models; `finish` returns the coded bytes."""

    def __init__(self) -> None:
        self._runs: list[tuple[Array, Array]] = []

    def add(self, symbols: Array, drops: Array) -> None:
        if symbols.size and _needs_coding(drops):
            self._runs.append((symbols, drops))

    def finish(self) -> bytes:
        coder = _coder()
        for symbols, drops in reversed(self._runs):
            model = _model(drops)
            for start in reversed(range(0, symbols.size, _CHUNK)):
                coder.encode_reverse(symbols[start : start + _CHUNK].astype(np.int32), model)
        return bytes(coder.get_compressed().astype("<u4").tobytes())


class Decoder:
    """Returns the runs in the order they were added. The caller provides the room, and checked its size first.

    constriction reads past the end without an error, so a forged stream yields arbitrary symbols of the alphabet: wrong
    values, but values of the table. Damage is found by the checksum, not here.
    """

    def __init__(self, words: bytes | memoryview) -> None:
        try:
            aligned = np.frombuffer(words, dtype="<u4")
            self._coder = _coder(np.require(aligned, np.uint32, ["A"]))
        except ValueError as error:
            raise ArtefactError("The artefact's coded part does not end as a coder would end it") from error

    def take(self, drops: Array, table: Array, out: Array) -> None:
        """Fill `out` with the next symbols, already looked up in `table`."""
        if out.size == 0 or not _needs_coding(drops):
            out[:] = table[int(np.argmax(np.asarray(drops) >= 0))]
            return
        model = _model(drops)
        for start in range(0, out.size, _CHUNK):
            part = out[start : start + _CHUNK]
            part[:] = table[self._coder.decode(model, part.size)]

    def finish(self) -> None:
        if not self._coder.is_empty():
            raise ArtefactError("The artefact's coded part holds more than its tensors use")
