"""Stochastic rounding to bf16 whose dice are a hash of (seed, step, tensor, element): no generator, so runs repeat."""

from __future__ import annotations

import torch
from torch import Tensor

from paretorch.optim.rule import Scalar

_MASK = 0xFFFFFFFF


def stream_key(seed: int, index: int, which: int) -> int:
    """A 32 bit key per tensor (`index`) and per moment (`which`), by the same mixing as the elements."""
    key = seed & _MASK
    for word in (index, which):
        key = _mix_int(key ^ _mix_int(word + 0x9E3779B9))
    return key


def round_to_bf16(values: Tensor, out: Tensor, key: int, step: Scalar, offset: int) -> None:
    """Write `values` (as fp32) to bf16 `out`, up with probability equal to the remainder: E[out] = values.

    `offset` is the position of values[0] in its tensor, so that a tensor may be rounded in pieces.
    """
    count = torch.arange(values.numel(), dtype=torch.int32, device=values.device) + _signed(offset & _MASK)
    if isinstance(step, Tensor):
        salt: int | Tensor = _mix(step.to(values.device, torch.int32) ^ _signed(key))
    else:
        salt = _signed(_mix_int((int(step) ^ key) & _MASK))
    dice = _mix(count ^ salt) & 0xFFFF
    bits = values.to(torch.float32).contiguous().view(torch.int32).flatten() + dice
    out.copy_((bits & -0x10000).view(torch.float32).view(values.shape))


def _mix(x: Tensor) -> Tensor:
    # The shifts are logical: the sign bits that an arithmetic shift brings in are masked away.
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * _signed(0x846CA68B)
    return x ^ ((x >> 16) & 0xFFFF)


def _mix_int(x: int) -> int:
    x &= _MASK
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK
    return x ^ (x >> 16)


def _signed(x: int) -> int:
    return x - (1 << 32) if x >= 1 << 31 else x
