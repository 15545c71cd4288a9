"""One tensor into the file and back: the ways to store it, and the choice among them by size.

constant   one value, repeated
small      a few integers, as numbers in the index (`num_batches_tracked`)
grid       v * 2**e with small integers v: one symbol per weight carries mask, precision and code jointly
planes     anything else: the exponents, and each byte below them, coded if that pays
sparse     which weights are zero, then the planes of the others

Every way gives every bit back, except that negative zero becomes zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from paretorch.deploy import values
from paretorch.deploy.entropy import Array, Decoder, Encoder
from paretorch.deploy.sizes import TensorSize
from paretorch.deploy.symbols import Model, fit, levels, read_model, write_model
from paretorch.deploy.wire import ByteReader, ByteWriter
from paretorch.errors import ArtefactError

CODINGS = ("constant", "small", "grid", "planes", "sparse")  # the position is the number in the file: append only
_SMALL = 4  # tensors of at most this many integers go into the index
_TABLE_BITS = 7.0  # what an alphabet entry costs in the index, about


@dataclass
class Sink:
    """The three parts of a file being written: the index, the coded symbols, bytes that no model shrinks."""

    index: ByteWriter = field(default_factory=ByteWriter)
    coded: Encoder = field(default_factory=Encoder)
    plain: bytearray = field(default_factory=bytearray)


@dataclass
class Source:
    """The same three parts, being read."""

    index: ByteReader
    coded: Decoder
    plain: ByteReader


@dataclass(frozen=True)
class _Fitted:
    """An integer array with the model fitted to it."""

    model: Model
    symbols: Array
    counts: Array

    @classmethod
    def of(cls, ints: Array) -> _Fitted:
        return cls(*fit(ints))

    @property
    def bits(self) -> float:
        return float(self.model.bits(self.counts).sum()) + _TABLE_BITS * self.model.alphabet.size

    def write(self, sink: Sink) -> None:
        write_model(sink.index, self.model)
        sink.coded.add(self.symbols, self.model.drops)


def encode_tensor(tensor: Tensor, sink: Sink) -> TensorSize:
    """Append the tensor in the smallest way; dtype and shape are the caller's to store."""
    words = values.to_words(tensor)
    start = len(sink.index.data)
    zeros = int(words.size - np.count_nonzero(words))
    precisions: dict[int, int] = {}
    codes = masks = maps = 0.0
    if words.size == 0 or bool((words == words[0]).all()):
        coding = "constant"
        sink.index.number(CODINGS.index(coding))
        sink.index.number(int(words[0]) if words.size else 0)
        if words.size and (grid := values.to_grid(values.to_floats(words, tensor.dtype))):
            precisions = _precisions(np.unique(grid[0]), np.array([words.size]))
    elif words.size <= _SMALL and not tensor.dtype.is_floating_point:
        coding = "small"
        sink.index.number(CODINGS.index(coding))
        for word in words:
            sink.index.number(int(word))
    else:
        grid = values.to_grid(values.to_floats(words, tensor.dtype))
        fitted = _Fitted.of(grid[0]) if grid else None
        planes, plane_bits = _planes(words, tensor.dtype)
        mask = _Fitted.of((words != 0).astype(np.int32)) if 0 < zeros < words.size else None
        kept, kept_bits = _planes(words[words != 0], tensor.dtype) if mask else ([], 0.0)
        costs = {"planes": plane_bits}
        if fitted:
            costs["grid"] = fitted.bits
        if mask:
            costs["sparse"] = mask.bits + kept_bits
        coding = min(costs, key=lambda name: costs[name])
        sink.index.number(CODINGS.index(coding))
        if coding == "grid" and grid and fitted:
            sink.index.signed(grid[1])
            fitted.write(sink)
            masks, maps, codes = (bits / 8 for bits in _split(fitted.model, fitted.counts))
            precisions = _precisions(fitted.model.alphabet, fitted.counts)
        elif coding == "sparse" and mask:
            mask.write(sink)
            masks = float(mask.model.bits(mask.counts).sum()) / 8
            codes = _write_planes(kept, sink)
        else:
            codes = _write_planes(planes, sink)
    return TensorSize(
        coding=coding,
        numel=words.size,
        zeros=zeros,
        dense=words.nbytes,
        codes=codes,
        masks=masks,
        maps=maps,
        rest=float(len(sink.index.data) - start),
        precisions=precisions,
    )


def decode_tensor(source: Source, count: int, dtype: torch.dtype) -> Tensor:
    """The next tensor, flat. The caller has checked `count` against what it is ready to hold."""
    width = dtype.itemsize
    coding = CODINGS[source.index.number(len(CODINGS) - 1)]
    word_type = np.dtype(f"u{width}")
    if coding in ("constant", "small"):
        cells = count if coding == "small" else 1
        if cells > source.index.left:
            raise ArtefactError("the artefact's index is too short for its tensors")
        cell = np.array([source.index.number(256**width - 1) for _ in range(cells)], dtype=word_type)
        words = cell if coding == "small" else np.full(count, cell[0])
    elif coding == "grid":
        exponent = source.index.signed(2000)
        model = read_model(source.index, count)
        words = source.coded.take(count, model.drops, values.from_grid(model.alphabet, exponent, dtype))
    elif coding == "planes":
        words = _read_planes(source, count, dtype)
    else:
        model = read_model(source.index, count)
        kept = source.coded.take(count, model.drops, model.alphabet != 0)
        words = np.zeros(count, dtype=word_type)
        words[kept] = _read_planes(source, int(np.count_nonzero(kept)), dtype)
    return values.from_words(words, dtype)


def _split(model: Model, counts: Array) -> tuple[float, float, float]:
    """Bits for the masks, the map of precisions and the codes: the chain rule for -log2 P(symbol), under the model."""
    rows, total = levels(model.alphabet), model.bits(counts)
    share = 2.0 ** -(total / np.maximum(counts, 1))  # P(symbol) under the model
    zero = rows == -1
    keep = 1.0 - float(share[zero].sum())
    kept = int(counts[~zero].sum())
    mask = float(total[zero].sum()) - kept * np.log2(max(keep, 1e-300)) if zero.any() else 0.0
    map_bits = 0.0
    for row in np.unique(rows[~zero]):
        here = rows == row
        map_bits -= float(counts[here].sum()) * float(np.log2(share[here].sum() / keep))
    return mask, max(map_bits, 0.0), float(total.sum()) - mask - max(map_bits, 0.0)


def _precisions(alphabet: Array, counts: Array) -> dict[int, int]:
    """Bits p of each weight: an odd multiple of 2**(1-p), in units of the power of two at or below the largest."""
    top = int(np.abs(alphabet).max()).bit_length()
    found: dict[int, int] = {}
    for level, count in zip(levels(alphabet).tolist(), counts.tolist(), strict=True):
        p = 0 if level < 0 else top - level
        found[p] = found.get(p, 0) + int(count)
    return dict(sorted(found.items()))


def _planes(words: Array, dtype: torch.dtype) -> tuple[list[Array | _Fitted], float]:
    """Bytes of the words, highest first, fitted where coding pays; floats are turned so that a byte is an exponent."""
    width = words.dtype.itemsize
    if dtype.is_floating_point:
        words = words << words.dtype.type(1) | words >> words.dtype.type(8 * width - 1)
    octets = words.astype(f"<u{width}").view(np.uint8).reshape(-1, width)
    planes: list[Array | _Fitted] = []
    cost = 0.0
    for i in reversed(range(width)):
        plane = np.ascontiguousarray(octets[:, i])
        fitted = _Fitted.of(plane.astype(np.int32)) if plane.size else None
        if fitted and fitted.bits < 8 * plane.size:
            planes.append(fitted)
            cost += fitted.bits
        else:
            planes.append(plane)
            cost += 8 * plane.size
    return planes, cost


def _write_planes(planes: list[Array | _Fitted], sink: Sink) -> float:
    """Write them; returns the bytes they take outside the index."""
    taken = 0.0
    for plane in planes:
        sink.index.number(isinstance(plane, _Fitted))
        if isinstance(plane, _Fitted):
            plane.write(sink)
            taken += float(plane.model.bits(plane.counts).sum()) / 8
        else:
            sink.plain += plane.tobytes()
            taken += plane.size
    return taken


def _read_planes(source: Source, count: int, dtype: torch.dtype) -> Array:
    width = dtype.itemsize
    octets = np.empty((count, width), dtype=np.uint8)
    for i in reversed(range(width)):
        if source.index.number(1):
            model = read_model(source.index, count)
            octets[:, i] = source.coded.take(count, model.drops, model.alphabet.astype(np.uint8))
        else:
            octets[:, i] = np.frombuffer(source.plain.take(count), dtype=np.uint8)
    words = octets.view(f"<u{width}").ravel().astype(f"u{width}")
    if dtype.is_floating_point:
        words = words >> words.dtype.type(1) | words << words.dtype.type(8 * width - 1)
    return words
