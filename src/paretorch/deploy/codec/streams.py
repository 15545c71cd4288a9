"""The three parts of a file: the index (small numbers), entropy-coded symbols, and bytes that no model shrinks.

The entropy coder is constriction's ANS, one coder for a whole file. ANS is a stack: the encoder collects runs of symbols and
pushes them last run first, so that the decoder pops them in file order. One coder per tensor would cost one partly filled word
per tensor. Everything that is read is checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paretorch.errors import ArtefactError

Array = NDArray[Any]

_VARINT_BYTES = 10  # enough for the bit pattern of a 64-bit value
_CHUNK = 1 << 18  # symbols per call of the coder, so that int32 copies take 1 MiB
_STEPS = 16  # frequencies are powers of 2 ** (-1/16)
MAX_DROP = 24 * _STEPS  # constriction's probabilities have 24 bits


def _roots() -> list[int]:
    """Return floor(2 ** (24 - i/16)), computed in integers because floats could differ between machines."""
    return [isqrt(isqrt(isqrt(isqrt(1 << (24 * _STEPS - i))))) for i in range(_STEPS)]


_ROOTS = np.array(_roots(), dtype=np.int64)


def frequencies(drops: Array) -> Array:
    """Return the frequencies 2 ** (24 - drop/16) of a model, at least 1; 0 for a negative drop: the symbol does not occur."""
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

    # float64 holds these integers and their sums exactly, so every machine builds the same model
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
    """Returns the runs in the order in which they were added, into arrays whose size the caller has checked.

    constriction reads past the end without an error, so a forged stream gives arbitrary symbols of the alphabet: wrong values,
    but values of the table. The checksum finds damage.
    """

    def __init__(self, words: bytes | memoryview) -> None:
        self._coder: Any = None  # so that a file without coded words is read without constriction
        try:
            if len(words):
                aligned = np.frombuffer(words, dtype="<u4")
                self._coder = _coder(np.require(aligned, np.uint32, ["A"]))
        except ValueError as error:
            raise ArtefactError("The artefact's coded part has an impossible end") from error

    def take(self, drops: Array, table: Array, out: Array) -> None:
        """Fill `out` with the next symbols, looked up in `table`."""
        if out.size == 0 or not _needs_coding(drops):
            out[:] = table[int(np.argmax(np.asarray(drops) >= 0))]
            return
        model = _model(drops)
        self._coder = _coder() if self._coder is None else self._coder
        for start in range(0, out.size, _CHUNK):
            part = out[start : start + _CHUNK]
            part[:] = table[self._coder.decode(model, part.size)]

    def finish(self) -> None:
        if self._coder is not None and not self._coder.is_empty():
            raise ArtefactError("The artefact's coded part is longer than its tensors need")


class ByteWriter:
    """Appends numbers (LEB128: seven bits per byte, low bits first) and byte strings."""

    def __init__(self) -> None:
        self.data = bytearray()

    def number(self, value: int) -> None:
        while value > 127:
            self.data.append(value & 127 | 128)
            value >>= 7
        self.data.append(value)

    def signed(self, value: int) -> None:
        """Zigzag: 0, -1, 1, -2, ... become 0, 1, 2, 3, ..."""
        self.number(2 * value if value >= 0 else -2 * value - 1)

    def block(self, data: bytes) -> None:
        self.number(len(data))
        self.data += data


class ByteReader:
    """Reads what ByteWriter wrote; raises ArtefactError for anything impossible."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def number(self, limit: int = 2**62) -> int:
        value = 0
        for i in range(_VARINT_BYTES):
            byte = self.take(1)[0]
            value |= (byte & 127) << 7 * i
            if byte < 128:
                if value > limit:
                    raise ArtefactError(f"The artefact declares {value} where at most {limit} is possible")
                return value
        raise ArtefactError("The artefact holds a number of more than 64 bits")

    def signed(self, limit: int = 2**61) -> int:
        value = self.number(2 * limit + 1)
        return value // 2 if value % 2 == 0 else -(value // 2) - 1

    def numbers(self, count: int, limit: int) -> NDArray[np.int64]:
        """Read many numbers; allocate no more than the remaining bytes could fill."""
        if count > self.left:
            raise ArtefactError("The artefact's index is too short for its tables")
        return np.fromiter((self.number(limit) for _ in range(count)), dtype=np.int64, count=count)

    def take(self, count: int) -> memoryview:
        if count > self.left:
            raise ArtefactError(f"The artefact ends {count - self.left} bytes early")
        part = self._data[self._at : self._at + count]
        self._at += count
        return part

    def block(self) -> memoryview:
        return self.take(self.number(self.left))

    def finish(self, what: str) -> None:
        if self.left:
            raise ArtefactError(f"The artefact holds {self.left} bytes too many in {what}")


@dataclass
class PartsWriter:
    """The parts being written."""

    index: ByteWriter = field(default_factory=ByteWriter)
    coded: Encoder = field(default_factory=Encoder)
    plain: bytearray = field(default_factory=bytearray)


@dataclass
class PartsReader:
    """The parts being read."""

    index: ByteReader
    coded: Decoder
    plain: ByteReader


class BitCounts(NamedTuple):
    """Bits outside the index by purpose: values (codes), which weights are zero (masks), which precision (maps).

    Of the bits for values, `steps` are for steps and offsets, and `off` for values that are not exactly on their grid.
    """

    codes: float = 0.0
    masks: float = 0.0
    maps: float = 0.0
    steps: float = 0.0
    off: float = 0.0
