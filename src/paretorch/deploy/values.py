"""Tensors as words and integers: which dtypes are stored, and which weights lie on a power-of-two grid."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from paretorch.deploy.entropy import Array
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
_GRID_BITS = 16  # |v| < 2**16: up to 17 bits of precision within one tensor


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
    size = flat.element_size()
    return flat.view(_WORDS[size]).numpy().view(_UNSIGNED[size])


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


def to_grid(values: Array) -> tuple[Array, int] | None:
    """Integers v and the exponent e with values == v * 2**e and |v| < 2**16, v as small as possible; or None."""
    if values.dtype.kind in "iub":
        low, high = int(values.min()), int(values.max())
        return (values.astype(np.int32), 0) if max(-low, high) < 1 << _GRID_BITS else None
    top = float(np.abs(values).max())
    if top == 0.0:
        return np.zeros(values.size, dtype=np.int32), 0
    if not 2.0**-60 < top < 2.0**_GRID_BITS:  # also: NaN, infinity
        return None  # scaling up by at most 2**76 is exact in float32, scaling down would lose subnormals
    shift = _GRID_BITS - int(np.frexp(top)[1])
    sample = values[:: max(1, values.size // 1024)] * values.dtype.type(2.0**shift)
    if not np.array_equal(np.rint(sample), sample):
        return None
    scaled = values * values.dtype.type(2.0**shift)
    if not np.array_equal(np.rint(scaled), scaled):
        return None
    ints = scaled.astype(np.int32)
    used = int(np.bitwise_or.reduce(np.abs(ints)))
    common = (used & -used).bit_length() - 1
    return ints >> common, common - shift


def from_grid(alphabet: Array, exponent: int, dtype: torch.dtype) -> Array:
    """The words of the values alphabet * 2**exponent."""
    if dtype.is_floating_point:
        with np.errstate(over="ignore", under="ignore"):  # a forged exponent gives infinities, which harm nobody
            tensor = torch.from_numpy(np.ldexp(alphabet.astype(np.float64), exponent)).to(dtype)
    else:
        tensor = torch.from_numpy(alphabet.astype(np.int64)).to(dtype)
    return to_words(tensor)
