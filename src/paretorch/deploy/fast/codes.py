"""What a code of 2, 4 or 8 bits means, and the instructions that turn codes within 16-bit words into bf16.

On the odd grid (chapter 5) a p-bit code c is the odd integer 2c + 1 − 2^p, times a row's unit. It has no zero; rows with
zeros among their weights use the plain grid, c − 2^(p−1) (a p-bit odd grid *and* zero is a plain grid of p + 1 bits).
8-bit codes hold a sign and a magnitude m instead, ±(2m + 1) or ±m, because the mantissa of bf16 has 7 bits.

A word holds 16/p codes, of which number i belongs to bits p·i … p·i + p − 1. Two words lie side by side in a register, so
one instruction works on two codes: a shift puts them behind the point of 1.0 (bf16: 0x3F80), a mask and an or make
1 + c·2^(t−7), and one multiply-add, exact in bf16, makes the integer. No integer is ever converted to a float.
"""

from __future__ import annotations

import struct

import torch
from torch import Tensor

WIDTHS = (8, 4, 2)
WORD = 16
_ONE = 0x3F80


def largest(width: int, odd: bool) -> int:
    """Return the largest integer n such that both n and −n have a code."""
    return (1 << width) - 1 if odd else (1 << (width - 1)) - 1


def encode(integers: Tensor, width: int, odd: bool) -> Tensor:
    """Return the codes of integers that lie on the grid."""
    if width == 8:
        magnitude = integers.abs() >> 1 if odd else integers.abs()
        return magnitude + 128 * (integers < 0)
    return (integers + largest(width, True)) >> 1 if odd else integers + (1 << (width - 1))


def decode(codes: Tensor, width: int, odd: bool) -> Tensor:
    """Return the integers of codes: the inverse of `encode`."""
    if width == 8:
        magnitude = (codes & 127) * 2 + 1 if odd else codes & 127
        return torch.where(codes >= 128, -magnitude, magnitude)
    return 2 * codes - largest(width, True) if odd else codes - (1 << (width - 1))


def instructions(width: int, index: int, odd: bool) -> str:
    """Return PTX that extracts the codes number `index` of two words, $1, as two bf16 integers, $0."""
    if width == 8:
        position, scale, shift = 0, 256.0 if odd else 128.0, 8 * index
        lowest = 1.0 - scale if odd else -scale
    else:
        position = 3 if width == 4 else 1 + 2 * (index % 3)
        scale, shift = 2.0 ** (7 - position + odd), width * index - position
        lowest = -scale - (largest(width, True) if odd else 1 << (width - 1))
    mask = ((1 << min(width, 7)) - 1) << position
    sign = f"{_shift('s', 8 * index - 8)} lop3.b32 $0, $0, s, 0x80008000, 0x78;" if width == 8 else ""
    return (
        f"{{ .reg .b32 t, s, m, a; {_shift('t', shift)} lop3.b32 t, t, {_twice(mask)}, {_twice(_ONE)}, 0xEA; "
        f"mov.b32 m, {_twice(_bf16(scale))}; mov.b32 a, {_twice(_bf16(lowest))}; "
        f"fma.rn.bf16x2 $0, t, m, a; {sign} }}"
    )


def _shift(target: str, right: int) -> str:
    if right == 0:
        return f"mov.b32 {target}, $1;"
    return f"shr.u32 {target}, $1, {right};" if right > 0 else f"shl.b32 {target}, $1, {-right};"


def _bf16(value: float) -> int:
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    assert bits & 0xFFFF == 0, f"{value} is not a bf16 number"
    return bits >> 16


def _twice(half: int) -> str:
    return f"0x{half:04X}{half:04X}"
