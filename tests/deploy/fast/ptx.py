"""The few PTX instructions that unpacking uses, on numpy arrays: a slow, literal reading of the manual."""

from __future__ import annotations

import re

import numpy as np


def run(program: str, words: np.ndarray) -> np.ndarray:
    """$0 after the program, for $1 = words (uint32)."""
    registers: dict[str, np.ndarray] = {"$1": words}
    for line in program.strip("{} ").split(";"):
        parts = re.split(r"[,\s]+", line.strip())
        if parts[0] in ("", ".reg"):
            continue
        values = [registers[p] if p in registers else np.uint32(int(p, 0)) for p in parts[2:]]
        registers[parts[1]] = _OPERATIONS[parts[0]](*values)
    return registers["$0"]


def bf16(half: np.ndarray) -> np.ndarray:
    """The values of bf16 bit patterns."""
    return (half.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def _lop3(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: np.ndarray) -> np.ndarray:
    result = np.zeros(a.shape, np.uint32)
    for case in range(8):
        if int(table) >> case & 1:
            result |= (a if case & 4 else ~a) & (b if case & 2 else ~b) & (c if case & 1 else ~c)
    return result


def _fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    result = np.zeros(a.shape, np.uint32)
    for shift in (0, 16):
        x, y, z = (bf16((np.asarray(v) >> np.uint32(shift)) & np.uint32(0xFFFF)) for v in (a, b, c))
        bits = (x * y + z).astype(np.float32).view(np.uint32)
        assert not (bits & 0xFFFF).any(), "the product was rounded"
        result |= (bits >> 16) << np.uint32(shift)
    return result


_OPERATIONS = {
    "mov.b32": lambda a: a,
    "shr.u32": lambda a, n: a >> n,
    "shl.b32": lambda a, n: a << n,
    "lop3.b32": _lop3,
    "fma.rn.bf16x2": _fma,
}
