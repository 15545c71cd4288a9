"""One tensor into the file and back, stored in the way that takes the fewest bytes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from paretorch.deploy.codec import values
from paretorch.deploy.codec.entropy import Array
from paretorch.deploy.codec.grids import read_binary, read_grid
from paretorch.deploy.codec.parts import Sink, Source
from paretorch.deploy.codec.rounded import HALF, read_rounded
from paretorch.deploy.codec.storage import (
    SMALL,
    WAYS,
    Book,
    Constant,
    Dense,
    Grid,
    Small,
    Sparse,
    Steps,
    Way,
    few_values,
)
from paretorch.deploy.measure.sizes import TensorSize
from paretorch.errors import ArtefactError
from paretorch.support.binary import digits

_SURE = 1 << 12  # from this many weights on, a grid with a small alphabet needs no comparison: its table is negligible
_SAMPLE = 1 << 10


def encode_tensor(tensor: Tensor, sink: Sink) -> TensorSize:
    """Append the tensor; its dtype and shape are the caller's to store."""
    words = values.to_words(tensor)
    start = len(sink.index.data)
    way, precisions, scale = _smallest(words, tensor.dtype, tuple(tensor.shape))
    sink.index.number([known.name for known in WAYS].index(way.name))
    spent = way.write(sink)
    return TensorSize(
        coding=way.name,
        shape=tuple(tensor.shape),
        numel=words.size,
        zeros=int(words.size - np.count_nonzero(words)),
        dense=words.nbytes,
        codes=spent.codes / 8,
        masks=spent.masks / 8,
        maps=spent.maps / 8,
        rest=float(len(sink.index.data) - start),
        precisions=precisions,
        scale=scale,
    )


def decode_tensor(source: Source, shape: tuple[int, ...], dtype: torch.dtype, into: Tensor | None = None) -> Tensor:
    """The next tensor. The caller has checked the shape against what it is ready to hold.

    into: filled in place, where its memory lies as the file has it, so that no second copy is ever there.
    """
    if into is None or type(into) is not Tensor or into.device.type != "cpu" or not into.is_contiguous():
        made = decode_tensor(source, shape, dtype, torch.empty(shape, dtype=dtype))
        return made if into is None else into.copy_(made)
    way = WAYS[source.index.number(len(WAYS) - 1)]
    if not into.numel() and way is not Constant:  # a table for every slice of nothing could be of any size
        raise ArtefactError("the artefact codes a tensor without elements")
    words = values.words_of(into) if into.numel() else np.empty(0, dtype=f"u{dtype.itemsize}")
    way.read(source, shape, dtype, words)
    if dtype == torch.bool:
        np.not_equal(words, 0, out=words)  # a forged truth may be 2
    if not into.is_inference():
        increment_version(into)  # as every change in place does
    return into


def _smallest(words: Array, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Way, dict[int, int], int | None]:
    """The way; and the precisions of the values and the scale of their grid, in whatever way they are stored."""
    if words.size == 0 or bool((words == words[0]).all()):
        constant = Constant(words, dtype)
        return constant, constant.precisions, constant.scale
    if words.size <= SMALL and not dtype.is_floating_point:
        return Small(words), {}, None
    ways: list[Way] = []
    precisions: dict[int, int] = {}
    scale: int | None = None
    grid = read_binary(values.to_floats(words, dtype))
    on_grid = Grid(*grid, shape) if grid else None
    if on_grid is not None:
        precisions, scale = on_grid.precisions, on_grid.scale
        if dtype in HALF and (few := _few(words)) and _mean(few) < _mean(precisions):
            precisions, scale = few, None  # any few numbers of so few digits lie on a binary grid, a fine one
        ways.append(on_grid)
    elif _repeats(words):
        letters, places = np.unique(words, return_inverse=True)
        if letters.size <= words.size // 4:
            book = Book(letters, places.astype(np.int32), dtype, shape)
            precisions = book.precisions
            ways.append(book)
    if (steps := _steps(words, dtype, shape, on_grid)) is not None:
        ways.append(steps)
        if not precisions or _mean(steps.precisions) < _mean(precisions):
            precisions, scale = steps.precisions, None
    if on_grid is not None and words.size >= _SURE and on_grid.letters <= words.size // 16:
        return min(ways, key=lambda way: way.cost), precisions, scale
    ways.append(Dense(words, dtype))
    if not words.all():
        ways.append(Sparse(words, dtype, shape))
    return min(ways, key=lambda way: way.cost), precisions, scale


def _steps(words: Array, dtype: torch.dtype, shape: tuple[int, ...], on_grid: Grid | None) -> Steps | None:
    """A step for each row or column; None where there are none, or nothing to gain by them."""
    if len(shape) < 2 or dtype not in (torch.float32, *HALF):
        return None
    # On a binary grid there is nothing else to find; but in half precision one is found for numbers that were rounded, too.
    if on_grid is not None and (dtype not in HALF or on_grid.digits < digits(dtype)):
        return None
    # A step is four bytes, a code a quarter of one or more: slices of a value or two have nothing to gain, and may be many.
    axes = tuple(axis for axis in (0, 1) if 4 * shape[axis] + words.size // 4 < words.nbytes)
    floats = values.to_floats(words, dtype).reshape(shape)
    stepped = read_rounded(floats, dtype, axes) if dtype in HALF else read_grid(floats, axes)
    # That a few values of so few digits have large codes says nothing.
    if dtype in HALF and stepped is not None and np.unique(stepped.codes).size > words.size // 4:
        return None
    # As large as the tensor itself: a step a value, which any values have.
    return None if stepped is None or stepped.cost >= words.nbytes else Steps(stepped)


def _few(words: Array) -> dict[int, int]:
    """Precisions of values of 16 bits that are few, as those of a book are; empty where they are many."""
    different = int(np.count_nonzero(np.bincount(words)))
    return few_values(different, words.size) if different <= words.size // 4 else {}


def _mean(precisions: dict[int, int]) -> float:
    return sum(p * count for p, count in precisions.items()) / sum(precisions.values())


def _repeats(words: Array) -> bool:
    """Do the values that are not zero come again and again? Looked up in a sample, because sorting all is slow."""
    kept = words[words != 0]
    sample = kept[:: max(1, kept.size // _SAMPLE)]
    return bool(np.unique(sample).size <= sample.size // 2)
