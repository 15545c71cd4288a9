"""The codings of a tensor. Each knows its cost, writes itself, and reads itself back; all are exact.

constant   one value, repeated
small      a few integers, as numbers in the index (`num_batches_tracked`)
grid       v * 2**e with small integers v: one symbol per weight carries mask, precision and code jointly
book       few distinct values of any kind: their list, and one symbol per weight
steps      whole multiples of a step per row or column (any number): the steps, and one symbol per weight; in half
           precision the products are computed in fp32 and rounded
planes     anything else: exponents and bytes of the mantissa, entropy-coded if that pays
sparse     which weights are zero, then the planes of the others
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch

from paretorch.deploy.codec import grids
from paretorch.deploy.codec.grids import HALF
from paretorch.deploy.codec.integers import Integers, smallest_type
from paretorch.deploy.codec.slice_groups import levels_of
from paretorch.deploy.codec.streams import Array, BitCounts, PartsReader, PartsWriter
from paretorch.deploy.codec.symbols import Symbols, Tables, decode_symbols, read_tables
from paretorch.deploy.codec.words import Planes, binary_words, read_planes, to_floats, to_words
from paretorch.errors import ArtefactError

Shape = tuple[int, ...]
_LEAST_EXPONENT, _LARGEST_EXPONENT = -126, 100  # of a step that is a normal number, as are its multiples
SMALL = 4  # values: integer tensors of up to this size go into the index


class Coding(Protocol):
    """The interface of all codings."""

    name: str

    @property
    def cost(self) -> float:
        """The estimated bits, to choose by."""

    def write(self, writer: PartsWriter) -> BitCounts:
        """Append the tensor; return the bits spent outside the index."""

    @staticmethod
    def read(reader: PartsReader, shape: Shape, dtype: torch.dtype, out: Array) -> None:
        """Fill `out`, the words of a tensor of this shape and dtype, flat."""


class Constant:
    name = "constant"

    def __init__(self, words: Array, dtype: torch.dtype) -> None:
        self.cost = 0.0
        self._word = int(words[0]) if words.size else 0
        self.precisions = few_values(1, words.size) if words.size else {}
        self.scale: int | None = None
        if words.size and (grid := grids.read_binary(to_floats(words[:1], dtype))):
            self.precisions, self.scale = count_precisions(*grid, np.array([words.size]))

    def write(self, writer: PartsWriter) -> BitCounts:
        writer.index.number(self._word)
        return BitCounts()

    @staticmethod
    def read(reader: PartsReader, shape: Shape, dtype: torch.dtype, out: Array) -> None:
        out[:] = reader.index.number(256**dtype.itemsize - 1)


class Small:
    name = "small"

    def __init__(self, words: Array) -> None:
        self.cost = 0.0
        self._words = words

    def write(self, writer: PartsWriter) -> BitCounts:
        for word in self._words:
            writer.index.number(int(word))
        return BitCounts()

    @staticmethod
    def read(reader: PartsReader, shape: Shape, dtype: torch.dtype, out: Array) -> None:
        if out.size > SMALL:
            raise ArtefactError("The artefact keeps a large tensor in its index")
        for i in range(out.size):
            out[i] = reader.index.number(256**dtype.itemsize - 1)


class Grid:
    name = "grid"

    def __init__(self, ints: Array, exponent: int, shape: Shape) -> None:
        self._exponent = exponent
        self._symbols = Symbols(ints, shape)
        self.cost = self._symbols.cost
        alphabet, counts = self._symbols.tables.alphabet, self._symbols.counts.sum(0)
        self.precisions, self.scale = count_precisions(alphabet[counts > 0], exponent, counts[counts > 0])

    @property
    def letters(self) -> int:
        return int(self._symbols.tables.alphabet.size)

    @property
    def digits(self) -> int:
        """Binary digits of the largest code."""
        return int(np.abs(self._symbols.tables.alphabet).max()).bit_length()

    def write(self, writer: PartsWriter) -> BitCounts:
        writer.index.signed(self._exponent)
        self._symbols.write(writer.index, writer.coded)
        return explain(self._symbols)

    @staticmethod
    def read(reader: PartsReader, shape: Shape, dtype: torch.dtype, out: Array) -> None:
        exponent = reader.index.signed(2000)
        tables = read_tables(reader.index, reader.coded, out.size, shape)
        decode_symbols(reader.coded, tables, binary_words(tables.alphabet, exponent, dtype), out, shape)

    @staticmethod
    def read_integers(reader: PartsReader, shape: Shape) -> Integers | Array:
        """Read an fp32 weight as whole numbers and one step; as words if fp32 has no such step."""
        exponent = reader.index.signed(2000)
        tables = read_tables(reader.index, reader.coded, math.prod(shape), shape)
        if _LEAST_EXPONENT <= exponent <= _LARGEST_EXPONENT:
            numbers = _read_numbers(reader, tables, shape)
            return Integers(numbers, np.full((shape[0], 1), 2.0**exponent, dtype=np.float32), numbers.shape[1])
        out = np.empty(math.prod(shape), dtype=np.uint32)
        decode_symbols(reader.coded, tables, binary_words(tables.alphabet, exponent, torch.float32), out, shape)
        return out


def _read_numbers(reader: PartsReader, tables: Tables, shape: Shape) -> Array:
    """Return whole numbers (outputs, inputs), in the smallest type that holds them."""
    alphabet = tables.alphabet
    numbers = np.empty(math.prod(shape), dtype=smallest_type(int(alphabet.min()), int(alphabet.max())))
    decode_symbols(reader.coded, tables, alphabet.astype(numbers.dtype), numbers, shape)
    return numbers.reshape(shape[0], -1)


class Codebook:
    name = "book"

    def __init__(self, letters: Array, places: Array, dtype: torch.dtype, shape: Shape) -> None:
        self._letters = Planes(letters, dtype)
        self._symbols = Symbols(places, shape)
        self.cost = self._letters.cost + self._symbols.cost
        self.precisions = few_values(letters.size, places.size)

    def write(self, writer: PartsWriter) -> BitCounts:
        self._symbols.write(writer.index, writer.coded)
        letters = self._letters.write(writer)
        return BitCounts(codes=letters + float(self._symbols.bits.sum()), maps=self._symbols.map_bits)

    @staticmethod
    def read(reader: PartsReader, shape: Shape, dtype: torch.dtype, out: Array) -> None:
        tables = read_tables(reader.index, reader.coded, out.size, shape)
        count = tables.alphabet.size
        places = np.empty(out.size, dtype=np.min_scalar_type(count))
        decode_symbols(reader.coded, tables, np.arange(count, dtype=places.dtype), places, shape)
        letters = np.empty(count, dtype=out.dtype)
        read_planes(reader, letters, dtype)
        np.take(letters, places, out=out, mode="clip")  # all indices are valid; the other modes copy `out`


class Steps:
    name = "steps"

    def __init__(self, grid: grids.Grid) -> None:
        assert grid.axis is not None
        self._axis, shape = grid.axis, grid.codes.shape
        self._steps = Planes(grid.steps.view(np.uint32), torch.float32)
        self._symbols = Symbols(grid.codes.astype(np.int32).ravel(), shape)
        self.cost = self._steps.cost + self._symbols.cost
        self.precisions = few_values(int(np.count_nonzero(self._symbols.counts.sum(0))), grid.codes.size)

    def write(self, writer: PartsWriter) -> BitCounts:
        writer.index.number(self._axis)
        self._symbols.write(writer.index, writer.coded)
        found, steps = explain(self._symbols, by_level=False), self._steps.write(writer)
        return found._replace(codes=found.codes + steps, steps=steps)

    @staticmethod
    def read(reader: PartsReader, shape: Shape, dtype: torch.dtype, out: Array) -> None:
        if dtype not in (torch.float32, *HALF) or not shape:
            raise ArtefactError("The artefact has steps for a tensor that cannot have any")
        axis = reader.index.number(len(shape) - 1)
        tables = read_tables(reader.index, reader.coded, out.size, shape)
        products = out.view(np.float32) if dtype == torch.float32 else np.empty(out.size, dtype=np.float32)
        decode_symbols(reader.coded, tables, tables.alphabet.astype(np.float32), products, shape)
        own = np.empty(shape[axis], dtype=np.uint32)
        read_planes(reader, own, torch.float32)
        weights = products.reshape(shape)
        with np.errstate(all="ignore"):  # forged steps may be anything
            weights *= own.view(np.float32).reshape([-1 if i == axis else 1 for i in range(len(shape))])
        if dtype != torch.float32:
            out[:] = to_words(torch.from_numpy(products).to(dtype))

    @staticmethod
    def read_integers(reader: PartsReader, shape: Shape) -> Integers | Array:
        """Read an fp32 weight as whole numbers and a step per output; as words if steps are along another axis."""
        axis = reader.index.number(len(shape) - 1)
        tables = read_tables(reader.index, reader.coded, math.prod(shape), shape)
        numbers = _read_numbers(reader, tables, shape)
        own = np.empty(shape[axis], dtype=np.uint32)
        read_planes(reader, own, torch.float32)
        steps = own.view(np.float32)
        if axis == 0:
            return Integers(numbers, steps[:, None], numbers.shape[1])
        spread = steps.reshape([-1 if i == axis else 1 for i in range(len(shape))])
        with np.errstate(all="ignore"):  # forged steps may be anything
            return np.asarray(numbers.reshape(shape) * spread, dtype=np.float32).ravel().view(np.uint32)


class Dense:
    name = "planes"

    def __init__(self, words: Array, dtype: torch.dtype) -> None:
        self._planes = Planes(words, dtype)
        self.cost = self._planes.cost

    def write(self, writer: PartsWriter) -> BitCounts:
        return BitCounts(codes=self._planes.write(writer))

    @staticmethod
    def read(reader: PartsReader, shape: Shape, dtype: torch.dtype, out: Array) -> None:
        read_planes(reader, out, dtype)


class Sparse:
    name = "sparse"

    def __init__(self, words: Array, dtype: torch.dtype, shape: Shape) -> None:
        kept = words != 0
        self._mask = Symbols(kept.astype(np.int32), shape)
        self._planes = Planes(words[kept], dtype)
        self.cost = self._mask.cost + self._planes.cost

    def write(self, writer: PartsWriter) -> BitCounts:
        self._mask.write(writer.index, writer.coded)
        masks = float(self._mask.bits.sum()) + self._mask.map_bits
        return BitCounts(codes=self._planes.write(writer), masks=masks)

    @staticmethod
    def read(reader: PartsReader, shape: Shape, dtype: torch.dtype, out: Array) -> None:
        tables = read_tables(reader.index, reader.coded, out.size, shape)
        kept = np.empty(out.size, dtype=bool)
        decode_symbols(reader.coded, tables, tables.alphabet != 0, kept, shape)
        words = np.empty(int(np.count_nonzero(kept)), dtype=out.dtype)
        read_planes(reader, words, dtype)
        out[:] = 0
        out[kept] = words


# A coding's position is its number in the file. This list is closed: further codings go into `tensors.CODINGS`.
PLAIN_CODINGS: tuple[type[Coding], ...] = (Constant, Small, Grid, Codebook, Dense, Sparse, Steps)


def count_precisions(alphabet: Array, exponent: int, counts: Array) -> tuple[dict[int, int], int]:
    """Return {bits p: weights}, and k: a weight is an odd multiple of 2**(1-p) * 2**k, where 2**k is at most the largest."""
    top = int(np.abs(alphabet).max()).bit_length()
    found: dict[int, int] = {}
    for level, count in zip(levels_of(alphabet).tolist(), counts.tolist(), strict=True):
        p = 0 if level < 0 else top - level
        found[p] = found.get(p, 0) + int(count)
    return dict(sorted(found.items())), exponent + top - 1


def few_values(different: int, count: int) -> dict[int, int]:
    """Return {bits p: weights} for `count` weights of `different` values, including zero: p = ⌈log₂ different⌉."""
    return {max(1, (different - 1).bit_length()): count}


def explain(symbols: Symbols, by_level: bool = True) -> BitCounts:
    """Split the bits into codes, masks and maps, by the chain rule for -log2 P(symbol), class by class.

    Args:
        by_level: Whether the trailing zeros of a code give its precision, as on the grid of chapter 5.
    """
    rows = levels_of(symbols.tables.alphabet)
    rows = rows if by_level else np.minimum(rows, 0)
    codes = masks = 0.0
    maps = symbols.map_bits
    for counts, bits in zip(symbols.counts, symbols.bits, strict=True):
        share = np.where(counts > 0, 2.0 ** -(bits / np.maximum(counts, 1)), 0.0)  # P(symbol) under the model
        kept = rows >= 0
        keep, many = float(share[kept].sum()), float(counts[kept].sum())
        mask = max(
            float(bits[~kept].sum()) - (many * math.log2(keep) if many else 0.0), 0.0
        )  # rounding must not give "-0"
        level_bits = 0.0
        for row in np.unique(rows[kept & (counts > 0)]):
            here = rows == row
            level_bits -= float(counts[here].sum()) * math.log2(float(share[here].sum()) / keep)
        level_bits = max(level_bits, 0.0)
        masks += mask
        maps += level_bits
        codes += max(float(bits.sum()) - mask - level_bits, 0.0)
    return BitCounts(codes, masks, maps)
