"""Stochastic rounding to bf16. The random bits are a hash of (seed, step, tensor, element), so that runs repeat.

The Triton kernel computes the same hash (`_mix` in triton_kernel.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from paretorch.optim.hyperparameters import Scalar

_MASK = 0xFFFFFFFF


def stream_key(seed: int, index: int, which: int) -> int:
    """A 32 bit key for the random stream of tensor `index` and moment `which`."""
    key = seed & _MASK
    for word in (index, which):
        key = _mix_int(key ^ _mix_int(word + 0x9E3779B9))
    return key


def round_to_bf16(values: Tensor, out: Tensor, key: int, step: Scalar, offset: int) -> None:
    """Write `values` to bf16 `out`, rounded up with a probability equal to the remainder: E[out] = values.

    Args:
        values: read as fp32.
        out: of the same shape.
        key: from `stream_key`.
        step: the number of the step, on the host or on the device.
        offset: position of values[0] in its tensor, so that a tensor may be rounded in parts.
    """
    position = torch.arange(values.numel(), dtype=torch.int32, device=values.device) + _signed(offset & _MASK)
    if isinstance(step, Tensor):
        salt: int | Tensor = _mix(step.to(values.device, torch.int32) ^ _signed(key))
    else:
        salt = _signed(_mix_int((int(step) ^ key) & _MASK))
    # The 16 bits that bf16 drops are a fraction of its last bit: adding 16 random bits carries with that probability.
    random = _mix(position ^ salt) & 0xFFFF
    bits = values.to(torch.float32).contiguous().view(torch.int32).flatten() + random
    out.copy_((bits & -0x10000).view(torch.float32).view(values.shape))


def _mix(x: Tensor) -> Tensor:
    """A 32 bit hash of every element."""
    # The shifts are logical: the sign bits that an arithmetic shift brings in are masked away.
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * _signed(0x846CA68B)
    return x ^ ((x >> 16) & 0xFFFF)


def _mix_int(x: int) -> int:
    """The same hash of a Python integer."""
    x &= _MASK
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK
    return x ^ (x >> 16)


def _signed(x: int) -> int:
    """The int32 with the same bits as the uint32 `x`."""
    return x - (1 << 32) if x >= 1 << 31 else x
