"""Words as planes of bytes, for values that lie on no grid: trained floats have few exponents and random mantissas."""

from __future__ import annotations

import sys

import numpy as np
import torch

from paretorch.deploy.codec.entropy import Array
from paretorch.deploy.codec.parts import Sink, Source
from paretorch.deploy.codec.symbols import Symbols, read_symbols, take_symbols

_CHUNK = 1 << 18  # words turned at once


class Planes:
    """The bytes of the words, highest first, each plane entropy-coded where that pays and plain elsewhere.

    Floats are turned left by one bit, so that one byte holds the whole exponent and the next sign and top of the mantissa.
    """

    def __init__(self, words: Array, dtype: torch.dtype) -> None:
        width = words.dtype.itemsize
        if dtype.is_floating_point:
            words = words << words.dtype.type(1) | words >> words.dtype.type(8 * width - 1)
        octets = words.astype(f"<u{width}").view(np.uint8).reshape(-1, width)
        self._planes: list[Array | Symbols] = []
        self.cost = 0.0
        for i in reversed(range(width)):
            plane = np.ascontiguousarray(octets[:, i])
            few = 0 < np.count_nonzero(np.bincount(plane, minlength=256)) <= plane.size // 4
            symbols = Symbols(plane.astype(np.int32)) if few else None
            if symbols and symbols.cost < 8 * plane.size:
                self._planes.append(symbols)
                self.cost += symbols.cost
            else:
                self._planes.append(plane)
                self.cost += 8 * plane.size

    def write(self, sink: Sink) -> float:
        """Write the planes; returns the bits they take outside the index."""
        spent = 0.0
        for plane in self._planes:
            sink.index.number(isinstance(plane, Symbols))
            if isinstance(plane, Symbols):
                plane.write(sink.index, sink.coded)
                spent += float(plane.bits.sum())
            else:
                sink.plain += plane.tobytes()
                spent += 8 * plane.size
        return spent


def read_planes(source: Source, out: Array, dtype: torch.dtype) -> None:
    """Fill `out`, flat words of the dtype's width, plane by plane."""
    width = dtype.itemsize
    octets = out.view(np.uint8).reshape(-1, width)
    for i in reversed(range(width)):
        place = octets[:, i if sys.byteorder == "little" else width - 1 - i]
        if source.index.number(1):
            tables = read_symbols(source.index, source.coded, out.size)
            take_symbols(source.coded, tables, tables.alphabet.astype(np.uint8), place)
        else:
            place[:] = np.frombuffer(source.plain.take(out.size), dtype=np.uint8)
    if dtype.is_floating_point:
        for start in range(0, out.size, _CHUNK):
            part = out[start : start + _CHUNK]
            part[:] = part >> out.dtype.type(1) | part << out.dtype.type(8 * width - 1)
