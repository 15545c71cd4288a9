"""Noise as a pure function of (seed, step, position): no generator state, so nothing to save, share or lose.

The same numbers come out of eager mode, inductor, CPU and GPU, on every rank, on every read of a weight within
one step, and after a resume. Under `torch.compile` the hash is fused into the kernel that uses it: no memory traffic.
"""

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
# Multipliers below 2³¹: a 32-bit value times one of them stays inside a signed 64-bit integer.
_FIRST, _SECOND, _STRIDE = 0x21F0AAAD, 0x735A2D97, 0x6A09E667


def _mix(x: Tensor, key: Tensor | int = 0) -> Tensor:
    """A 32-bit integer hash in int64 arithmetic; `key` enters between the rounds, so streams are no shifted copies."""
    x = x ^ (x >> 16)
    x = (x * _FIRST) & _MASK
    x = x ^ key
    x = x ^ (x >> 15)
    x = (x * _SECOND) & _MASK
    return x ^ (x >> 15)


def uniform(shape: torch.Size, step: Tensor, seed: int) -> Tensor:
    """ε ~ U(−1, 1) in fp32, the same for the same (shape, step, seed); `step` is an integer tensor on the device."""
    outer = _mix((step * _STRIDE + seed) & _MASK)
    inner = _mix(outer ^ (seed & _MASK), _STRIDE)
    index = torch.arange(shape.numel(), device=step.device, dtype=torch.int64)
    bits = _mix(index ^ outer, inner) >> 8
    return ((bits.to(torch.float32) + 0.5) * 2.0**-23 - 1.0).view(shape)


def seed_for(seed: int, name: str) -> int:
    """One stream a weight: a stable 32-bit hash (FNV-1a) of the plan's seed and the weight's name."""
    value = 0x811C9DC5 ^ (seed & _MASK)
    for byte in name.encode():
        value = ((value ^ byte) * 0x01000193) & _MASK
    return value
