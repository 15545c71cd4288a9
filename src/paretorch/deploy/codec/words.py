"""Tensors as words (their bit patterns, unsigned integers) and as planes of bytes, and back.

Planes store values that lie on no grid: trained floats have few exponents and random mantissas.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor

from paretorch.deploy.codec.streams import Array, PartsReader, PartsWriter
from paretorch.deploy.codec.symbols import Symbols, decode_symbols, read_tables
from paretorch.errors import ConfigError

# The position of a dtype in this list is its number in the file: append only.
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_CHUNK = 1 << 18  # words rotated at once


def dtype_number(name: str, dtype: torch.dtype) -> int:
    """Return the number of a dtype in the file; `name` is the tensor's, for the error."""
    if dtype not in DTYPES:
        known = ", ".join(str(known).removeprefix("torch.") for known in DTYPES)
        raise ConfigError(f"{name} is {dtype}, which an artefact cannot hold; it holds {known}")
    return DTYPES.index(dtype)


def to_words(tensor: Tensor) -> Array:
    """Return the bit patterns, flat, as unsigned integers. -0.0, which masks produce, becomes 0.0."""
    flat = tensor.detach().cpu().contiguous().flatten()
    if flat.is_floating_point():
        flat = torch.where(flat == 0, torch.zeros((), dtype=flat.dtype), flat)
    return words_of(flat)


def words_of(tensor: Tensor) -> Array:
    """View the memory of a contiguous, nonempty tensor as flat unsigned integers: writing to them writes to the tensor."""
    size = tensor.element_size()
    return tensor.detach().view(-1).view(_WORDS[size]).numpy().view(_UNSIGNED[size])


def from_words(words: Array, dtype: torch.dtype) -> Tensor:
    """Return the flat tensor of these words: the inverse of `to_words`."""
    if dtype == torch.bool:
        return torch.from_numpy(words != 0)
    if words.size == 0:
        return torch.empty(0, dtype=dtype)  # an empty numpy array has strides that view() refuses
    size = words.dtype.itemsize
    signed = words.view(np.dtype(f"i{size}")) if size > 1 else words
    return torch.from_numpy(signed).view(dtype)


def to_floats(words: Array, dtype: torch.dtype) -> Array:
    """Return the values as numpy floats (or integers), exact for every dtype."""
    tensor = from_words(words, dtype)
    return (tensor.float() if dtype in (torch.float16, torch.bfloat16) else tensor).numpy()


def binary_words(codes: Array, exponent: int, dtype: torch.dtype) -> Array:
    """Return the words of the values codes * 2**exponent."""
    if dtype.is_floating_point:
        with np.errstate(over="ignore", under="ignore"):  # a forged exponent may give infinities, which are harmless
            tensor = torch.from_numpy(np.ldexp(codes.astype(np.float64), exponent)).to(dtype)
    else:
        tensor = torch.from_numpy(codes.astype(np.int64)).to(dtype)
    return to_words(tensor)


class Planes:
    """The bytes of the words, highest first. Each plane is entropy-coded if that takes fewer bytes.

    Floats are rotated left by one bit: one byte then holds the whole exponent, and the sign moves to the lowest bit.
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

    def write(self, writer: PartsWriter) -> float:
        """Write the planes; return the bits they take outside the index."""
        spent = 0.0
        for plane in self._planes:
            writer.index.number(isinstance(plane, Symbols))
            if isinstance(plane, Symbols):
                plane.write(writer.index, writer.coded)
                spent += float(plane.bits.sum())
            else:
                writer.plain += plane.tobytes()
                spent += 8 * plane.size
        return spent


def read_planes(reader: PartsReader, out: Array, dtype: torch.dtype) -> None:
    """Fill `out` (flat words of the dtype's width) plane by plane."""
    width = dtype.itemsize
    octets = out.view(np.uint8).reshape(-1, width)
    for i in reversed(range(width)):
        place = octets[:, i if sys.byteorder == "little" else width - 1 - i]
        if reader.index.number(1):
            tables = read_tables(reader.index, reader.coded, out.size)
            decode_symbols(reader.coded, tables, tables.alphabet.astype(np.uint8), place)
        else:
            place[:] = np.frombuffer(reader.plain.take(out.size), dtype=np.uint8)
    if dtype.is_floating_point:
        for start in range(0, out.size, _CHUNK):
            part = out[start : start + _CHUNK]
            part[:] = part >> out.dtype.type(1) | part << out.dtype.type(8 * width - 1)
