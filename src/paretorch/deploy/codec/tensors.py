"""One tensor into the file and back, in the coding that takes the fewest bytes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from paretorch.deploy.codec.affine import Affine
from paretorch.deploy.codec.codings import (
    PLAIN_CODINGS,
    SMALL,
    Codebook,
    Coding,
    Constant,
    Dense,
    Grid,
    Small,
    Sparse,
    Steps,
    few_values,
)
from paretorch.deploy.codec.grids import HALF, read_binary, read_grid, read_rounded
from paretorch.deploy.codec.grids import Grid as StepGrid
from paretorch.deploy.codec.grouped import Grouped, read_groups
from paretorch.deploy.codec.integers import Integers
from paretorch.deploy.codec.sizes import TensorSize
from paretorch.deploy.codec.streams import Array, PartsReader, PartsWriter
from paretorch.deploy.codec.words import from_words, to_floats, to_words, words_of
from paretorch.edits.scale import digits
from paretorch.errors import ArtefactError

# A coding's position is its number in the file: append only.
CODINGS: tuple[type[Coding], ...] = (*PLAIN_CODINGS, Affine)
_OF_INTEGERS = (Grid, Steps, Affine)
_CERTAIN = (
    1 << 12
)  # weights: with more, a grid with a small alphabet is not compared with planes, as its table is negligible
_MIN_GROUPED = 64  # values in a tensor whose groups are searched
_FEW_DIGITS = 8  # of the codes of a binary grid, with which groups are not searched
_NEARBY, _WINDOWS = 256, 64  # values in a window, and windows, by which `_repeats_nearby` decides
_SAMPLE = 1 << 10  # values by which `_repeats` decides


def encode_tensor(tensor: Tensor, writer: PartsWriter) -> TensorSize:
    """Append the tensor. The caller stores its dtype and shape."""
    words = to_words(tensor)
    start = len(writer.index.data)
    coding, precisions, scale = _smallest(words, tensor.dtype, tuple(tensor.shape))
    writer.index.number([known.name for known in CODINGS].index(coding.name))
    bits = coding.write(writer)
    return TensorSize(
        coding=coding.name,
        shape=tuple(tensor.shape),
        numel=words.size,
        zeros=int(words.size - np.count_nonzero(words)),
        dense=words.nbytes,
        codes=bits.codes / 8,
        masks=bits.masks / 8,
        maps=bits.maps / 8,
        steps=bits.steps / 8,
        off=bits.off / 8,
        rest=float(len(writer.index.data) - start),
        precisions=precisions,
        scale=scale,
    )


def decode_tensor(
    reader: PartsReader, shape: tuple[int, ...], dtype: torch.dtype, into: Tensor | None = None
) -> Tensor:
    """Read the next tensor. The caller has checked that it can hold a tensor of this shape.

    Args:
        into: A tensor to fill, in place if it is contiguous, of the same dtype and on the CPU, so that there is no second copy.
    """
    alike = type(into) is Tensor and into.dtype == dtype and into.device.type == "cpu" and into.is_contiguous()
    if into is None or not alike:
        made = decode_tensor(reader, shape, dtype, torch.empty(shape, dtype=dtype))
        return made if into is None else into.copy_(made)
    coding = _read_coding(reader, shape)
    words = words_of(into) if into.numel() else np.empty(0, dtype=f"u{dtype.itemsize}")
    coding.read(reader, shape, dtype, words)
    if dtype == torch.bool:
        np.not_equal(words, 0, out=words)  # a forged boolean may be 2
    if not into.is_inference():
        increment_version(into)  # as every change in place does
    return into


def decode_integers(reader: PartsReader, shape: tuple[int, ...], dtype: torch.dtype) -> Integers | Tensor:
    """Read the next tensor as whole numbers and steps, if it is stored so, without making it dense; else as a tensor."""
    coding: Any = _read_coding(reader, shape)
    if dtype == torch.float32 and len(shape) > 1 and coding in _OF_INTEGERS:
        found: Integers | Array = coding.read_integers(reader, shape)
    else:
        found = np.empty(math.prod(shape), dtype=f"u{dtype.itemsize}")
        coding.read(reader, shape, dtype, found)
    return found if isinstance(found, Integers) else from_words(found, dtype).view(shape)


def _read_coding(reader: PartsReader, shape: tuple[int, ...]) -> type[Coding]:
    coding = CODINGS[reader.index.number(len(CODINGS) - 1)]
    if not math.prod(shape) and coding is not Constant:  # the tables of its slices could have any size
        raise ArtefactError("The artefact codes a tensor without elements")
    return coding


def _smallest(words: Array, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Coding, dict[int, int], int | None]:
    """Return the cheapest coding, the precisions of the values and the scale of their grid (whatever the coding)."""
    if words.size == 0 or bool((words == words[0]).all()):
        constant = Constant(words, dtype)
        return constant, constant.precisions, constant.scale
    if words.size <= SMALL and not dtype.is_floating_point:
        return Small(words), {}, None
    codings: list[Coding] = []
    precisions: dict[int, int] = {}
    scale: int | None = None
    grid = read_binary(to_floats(words, dtype))
    on_grid = Grid(*grid, shape) if grid else None
    if on_grid is not None:
        precisions, scale = on_grid.precisions, on_grid.scale
        if dtype in HALF and (few := _few(words)) and _mean(few) < _mean(precisions):
            precisions, scale = few, None  # numbers of few digits always lie on some fine binary grid
        codings.append(on_grid)
    elif _repeats(words):
        letters, places = np.unique(words, return_inverse=True)
        if letters.size <= words.size // 4:
            book = Codebook(letters, places.astype(np.int32), dtype, shape)
            precisions = book.precisions
            codings.append(book)
    steps = _grouped(words, dtype, shape, on_grid) or _steps(words, dtype, shape, on_grid)
    if steps is not None:
        codings.append(steps)
        if not precisions or _mean(steps.precisions) < _mean(precisions):
            precisions, scale = steps.precisions, None
    if on_grid is not None and words.size >= _CERTAIN and on_grid.letters <= words.size // 16:
        return min(codings, key=lambda coding: coding.cost), precisions, scale
    if steps is not None and words.size >= _CERTAIN and steps.cost < 4 * np.count_nonzero(words) * dtype.itemsize:
        return min(codings, key=lambda coding: coding.cost), precisions, scale
    codings.append(Dense(words, dtype))
    if not words.all():
        codings.append(Sparse(words, dtype, shape))
    return min(codings, key=lambda coding: coding.cost), precisions, scale


def _grouped(words: Array, dtype: torch.dtype, shape: tuple[int, ...], on_grid: Grid | None) -> Affine | Steps | None:
    """Return steps (and offsets) of groups, rows or columns; None if the values seem to have none."""
    if dtype not in (torch.float32, *HALF) or len(shape) < 2 or words.size < _MIN_GROUPED:
        return None
    if (on_grid is not None and on_grid.digits <= _FEW_DIGITS) or not _repeats_nearby(words, shape):
        return None
    found = read_groups(words, dtype, shape)
    if found is None:
        return None
    whole = found.layout.length == found.codes.shape[1] and found.layout.axis < 2 and not found.form
    return Steps(_as_grid(found, shape)) if whole and not found.corrections.any() else Affine(found)


def _as_grid(found: Grouped, shape: tuple[int, ...]) -> StepGrid:
    axis = found.layout.axis
    moved = (shape[axis], *(length for i, length in enumerate(shape) if i != axis))
    codes = np.ascontiguousarray(np.moveaxis(found.codes.reshape(moved), 0, axis))
    return StepGrid(codes, found.steps.ravel(), axis)


def _repeats_nearby(words: Array, shape: tuple[int, ...]) -> bool:
    """Return whether magnitudes repeat among neighbours in a row or column, as the codes of a group do and floats do not."""
    sizes = (words & words.dtype.type((1 << (8 * words.itemsize - 1)) - 1)).reshape(shape)
    for axis in (0, 1):
        rows = np.moveaxis(sizes, axis, 0).reshape(shape[axis], -1)
        width = min(_NEARBY, rows.shape[1])
        picked = np.unique(np.linspace(0, len(rows) - 1, min(_WINDOWS, len(rows))).astype(np.int64))
        starts = np.linspace(0, rows.shape[1] - width, picked.size).astype(np.int64)
        windows = np.sort(rows[picked[:, None], starts[:, None] + np.arange(width)], axis=1)
        again = np.count_nonzero((windows[:, 1:] == windows[:, :-1]) & (windows[:, 1:] != 0))
        if again > np.count_nonzero(windows) // 16:
            return True
    return False


def _steps(words: Array, dtype: torch.dtype, shape: tuple[int, ...], on_grid: Grid | None) -> Steps | None:
    """Return steps per row or column; None if there are none, or if they save nothing."""
    if len(shape) < 2 or dtype not in (torch.float32, *HALF):
        return None
    # A binary grid is final, except in half precision, where any rounded numbers lie on a fine one.
    if on_grid is not None and (dtype not in HALF or on_grid.digits < digits(dtype)):
        return None
    # A step takes four bytes, a code at least a quarter of a byte: slices of one or two values save nothing.
    axes = tuple(axis for axis in (0, 1) if 4 * shape[axis] + words.size // 4 < words.nbytes)
    floats = to_floats(words, dtype).reshape(shape)
    stepped = read_rounded(floats, dtype, axes) if dtype in HALF else read_grid(floats, axes)
    # A few values of few digits always have steps, with large codes: that is no grid.
    if dtype in HALF and stepped is not None and np.unique(stepped.codes).size > words.size // 4:
        return None
    # One step per value is no grid, and as large as the tensor.
    return None if stepped is None or stepped.cost >= words.nbytes else Steps(stepped)


def _few(words: Array) -> dict[int, int]:
    """Return the precisions of 16-bit values if few of them differ, as in a codebook; else an empty dict."""
    different = int(np.count_nonzero(np.bincount(words)))
    return few_values(different, words.size) if different <= words.size // 4 else {}


def _mean(precisions: dict[int, int]) -> float:
    return sum(p * count for p, count in precisions.items()) / sum(precisions.values())


def _repeats(words: Array) -> bool:
    """Return whether the nonzero values repeat, judged by a sample because sorting all of them is slow."""
    kept = words[words != 0]
    sample = kept[:: max(1, kept.size // _SAMPLE)]
    return bool(np.unique(sample).size <= sample.size // 2)
