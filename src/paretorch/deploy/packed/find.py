"""The whole numbers and steps of a weight that is in memory, read off its values as the file's encoder reads them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from paretorch.deploy.codec.grids import read_binary, read_grid
from paretorch.deploy.codec.grouped import FLAT, read_groups
from paretorch.deploy.codec.integers import Integers
from paretorch.deploy.codec.words import to_floats, to_words
from paretorch.deploy.packed.few_bits import FewBits, pack


def pack_values(weight: Tensor) -> FewBits | None:
    """Pack an fp32 weight of a CPU exactly; None if its values are on no grid of 2, 4 or 8 bits."""
    if weight.dtype != torch.float32 or weight.device.type != "cpu" or weight.dim() < 2 or not weight.numel():
        return None
    shape = (weight.shape[0], weight[0].numel())
    words = to_words(weight)
    values = to_floats(words, torch.float32).reshape(shape)
    if not np.isfinite(values).all():
        return None
    return next((packed for one in _readings(words, values) if (packed := pack(one)) is not None), None)


def _readings(words: np.ndarray, values: np.ndarray) -> Iterator[Integers]:
    rows, width = values.shape
    binary = read_binary(values.ravel())
    if binary is not None:
        numbers, exponent = binary
        yield Integers(numbers.reshape(rows, width), np.full((rows, 1), 2.0**exponent, dtype=np.float32), width)
    grid = read_grid(values, (0,))
    if grid is not None:
        yield Integers(grid.codes, grid.steps[:, None], width)
    found = read_groups(words, torch.float32, (rows, width))
    if found is None or found.form or found.layout.axis not in (0, FLAT) or found.corrections.any():
        return
    length = found.layout.length
    if found.layout.axis == 0 or width % length == 0:
        yield Integers(found.codes.reshape(rows, width), found.steps.reshape(rows, -1), min(length, width))
