"""Numbers, byte strings and the parts of a file, written and read back with every read checked.

An artefact has three parts: the index (small numbers), the entropy-coded symbols, and bytes that no model shrinks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paretorch.deploy.codec.entropy import Decoder, Encoder
from paretorch.errors import ArtefactError

_VARINT_BYTES = 10  # enough for the bit pattern of a 64-bit value


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
    """Reads what ByteWriter wrote; raises ArtefactError, never IndexError, for anything that does not fit."""

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
        """Read many numbers at once; allocate nothing that the remaining bytes could not fill."""
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
    """Bits outside the index, by what they are for: values, which weights are zero, which precision.

    Of those for values, `steps` are for steps and offsets, `off` for values that are not on the grid, or not exactly.
    """

    codes: float = 0.0
    masks: float = 0.0
    maps: float = 0.0
    steps: float = 0.0
    off: float = 0.0
