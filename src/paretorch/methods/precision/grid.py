"""The fixed-point grid of chapter 5: p bits of value ±2^(1−j) are the odd multiples of 2^(1−p) within ±(2 − 2^(1−p)).

p = 1: ±1. p = 2: ±0.5, ±1.5. Zero is on no grid; it exists as p = 0. A tie goes up: Q(0, p) = 2^(1−p).
"""

import math

import torch
from torch import Tensor

from paretorch.edits.scale import MAX_BITS as MAX_BITS
from paretorch.edits.scale import digits
from paretorch.edits.scale import power_of_two as power_of_two  # part of the grid's arithmetic
from paretorch.errors import ConfigError
from paretorch.support.widest import widened

LOG2 = math.log(2.0)
_SLACK = 1e-4  # so that a precision that is a whole number does not fall to the one below by rounding


def require_digits(name: str, dtype: torch.dtype, bits: int) -> None:
    """Refuse more bits than a number of this dtype has binary digits: the last ones would be rounded away, and count."""
    most = digits(dtype)
    if bits > most:
        raise ConfigError(
            f"{name} is {dtype}, which holds at most {most} bits, not {bits}: give fewer, or compress model.float()"
        )


def quantize(weight: Tensor, bits: Tensor) -> Tensor:
    """Q(w, p): the nearest value with p bits; 0 where p = 0."""
    unit = power_of_two(1 - bits)
    top = 2.0 - unit
    value = (torch.floor(weight / (2 * unit)) * 2 + 1) * unit
    return torch.where(bits > 0, torch.minimum(torch.maximum(value, -top), top), 0.0)


def real_bits(s: Tensor) -> Tensor:
    """p(s) = 1 + log₂(1 + e⁻ˢ), the precision whose half step is σ(s)."""
    return 1.0 + torch.nn.functional.softplus(-s) / LOG2


def s_of_bits(bits: float | Tensor) -> Tensor:
    """The inverse: s = −ln(2^(p−1) − 1)."""
    p = widened(bits) if isinstance(bits, Tensor) else torch.as_tensor(bits, dtype=torch.float64)
    return -torch.log(torch.expm1((p - 1.0) * LOG2)).to(torch.float32)


def whole_bits(real: Tensor, allowed: tuple[int, ...] = (), rounding: str = "floor") -> Tensor:
    """Integers from real precisions: rounded down (default) or to the nearest; only `allowed` ones where given."""
    if not allowed:
        whole = torch.floor(real + _SLACK) if rounding == "floor" else torch.round(real)
        return whole.clamp(1, MAX_BITS).to(torch.int32)
    levels = torch.tensor(sorted(allowed), device=real.device, dtype=torch.float32)
    edges = levels - _SLACK if rounding == "floor" else torch.cat([levels[:1], (levels[1:] + levels[:-1]) / 2])
    index = (torch.bucketize(real, edges, right=True) - 1).clamp_min(0)
    return levels[index].to(torch.int32)


def level_above(bits: float, allowed: tuple[int, ...] = ()) -> int:
    """The least level that is not below `bits`, or the largest: what a generous target may raise a weight to."""
    levels = sorted(allowed) or list(range(1, MAX_BITS + 1))
    return next((level for level in levels if level >= bits), levels[-1])
