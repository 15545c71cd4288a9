"""Tensors as words, their bit patterns, and back: which dtypes are stored, and under which number."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from paretorch.deploy.codec.entropy import Array
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


def dtype_number(name: str, dtype: torch.dtype) -> int:
    if dtype not in DTYPES:
        known = ", ".join(str(known).removeprefix("torch.") for known in DTYPES)
        raise ConfigError(f"{name} is {dtype}, which an artefact cannot hold; it holds {known}")
    return DTYPES.index(dtype)


def to_words(tensor: Tensor) -> Array:
    """The bit patterns, flat, as unsigned integers. Negative zero becomes zero: masks make it, and no sum can tell."""
    flat = tensor.detach().cpu().contiguous().flatten()
    if flat.is_floating_point():
        flat = torch.where(flat == 0, torch.zeros((), dtype=flat.dtype), flat)
    return words_of(flat)


def words_of(tensor: Tensor) -> Array:
    """The memory of a contiguous tensor with elements, as unsigned integers, flat: writing them writes the tensor."""
    size = tensor.element_size()
    return tensor.detach().view(-1).view(_WORDS[size]).numpy().view(_UNSIGNED[size])


def from_words(words: Array, dtype: torch.dtype) -> Tensor:
    if dtype == torch.bool:
        return torch.from_numpy(words != 0)
    if words.size == 0:
        return torch.empty(0, dtype=dtype)  # an empty numpy array has strides that view() refuses
    size = words.dtype.itemsize
    signed = words.view(np.dtype(f"i{size}")) if size > 1 else words
    return torch.from_numpy(signed).view(dtype)


def to_floats(words: Array, dtype: torch.dtype) -> Array:
    """The values as numpy floats (or integers): exact for every dtype."""
    tensor = from_words(words, dtype)
    return (tensor.float() if dtype in (torch.float16, torch.bfloat16) else tensor).numpy()


def binary_words(codes: Array, exponent: int, dtype: torch.dtype) -> Array:
    """The words of the values codes * 2**exponent."""
    if dtype.is_floating_point:
        with np.errstate(over="ignore", under="ignore"):  # a forged exponent gives infinities, which harm nobody
            tensor = torch.from_numpy(np.ldexp(codes.astype(np.float64), exponent)).to(dtype)
    else:
        tensor = torch.from_numpy(codes.astype(np.int64)).to(dtype)
    return to_words(tensor)
