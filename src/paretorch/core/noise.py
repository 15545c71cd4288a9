"""Noise as a pure function of (seed, step, position): no generator state, so nothing to save, share or lose.

The same numbers come out of eager mode, inductor, CPU and GPU, on every rank, on every read of a weight within
one step, and after a resume. Under `torch.compile` the hash is fused into the kernel that uses it: no memory traffic.
"""

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_FIRST, _SECOND, _STRIDE = 0x21F0AAAD, 0x735A2D97, 0x6A09E667


def _mix(x: Tensor, key: Tensor | int = 0) -> Tensor:
    """A 32-bit integer hash in int32 arithmetic, which wraps; `key` enters between the rounds, so streams are no
    shifted copies of each other. Shifts are masked, since those of signed integers drag the sign along."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = (x * _FIRST) ^ key
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * _SECOND
    return x ^ ((x >> 15) & 0x1FFFF)


def uniform(shape: torch.Size, step: Tensor, seed: int) -> Tensor:
    """ε ~ U(−1, 1) in fp32, the same for the same (shape, step, seed); `step` is an integer tensor on the device."""
    outer = _mix((step * _STRIDE + seed).to(torch.int32))
    inner = _mix(outer ^ _wrap_number(seed), _STRIDE)
    # Shaped before it is hashed: a compiler then draws it in the order in which the weight lies, in the kernel that adds it.
    index = torch.arange(shape.numel(), device=step.device, dtype=torch.int32).view(shape)
    bits = (_mix(_mix(index ^ outer, inner), outer) >> 8) & 0xFFFFFF  # twice: once leaves distant positions correlated
    return (bits.to(torch.float32) + 0.5) * 2.0**-23 - 1.0


def _wrap_number(x: int) -> int:
    low = x & _MASK
    return low - 0x100000000 if low > 0x7FFFFFFF else low


def seed_for(seed: int, name: str) -> int:
    """One stream a weight: a stable 32-bit hash (FNV-1a) of the plan's seed and the weight's name."""
    value = 0x811C9DC5 ^ (seed & _MASK)
    for byte in name.encode():
        value = ((value ^ byte) * 0x01000193) & _MASK
    return value
