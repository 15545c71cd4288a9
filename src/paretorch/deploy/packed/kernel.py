"""The products of few_bits.c: compiled at the first call, for this processor. Without a C compiler torch computes, block by block."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from paretorch.deploy.packed.few_bits import LANES, FewBits, unpack_rows
from paretorch.errors import PareWarning, warn
from paretorch.support.c_code import load_library

_SOURCE = Path(__file__).with_name("few_bits.c")
_PER_THREAD = 1 << 18
"""Weights times rows of input: with fewer, a product takes less time than starting another thread."""
_UNPACKED_AT_ONCE = 1 << 18


class _Weight(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("codes", "steps", "odd", "rows", "bias")),
        ("blocks", ctypes.c_int64 * 4),
        *((name, ctypes.c_int64) for name in ("inputs", "outputs", "group", "groups")),
    ]


@cache
def library() -> Any:
    """The compiled products; None without a compiler, which is said once."""
    return build(())


def build(definitions: tuple[str, ...]) -> Any:
    """The library of few_bits.c with these definitions; None, with a warning, if it cannot be compiled."""
    loaded = load_library(_SOURCE, definitions)
    if loaded is None:
        warn(
            "No C compiler works here, so that packed weights are multiplied by torch, which is several times slower: "
            "install gcc or clang",
            PareWarning,
        )
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    loaded.few_bits_multiply.argtypes = [pointer, pointer, pointer, number, number]
    loaded.few_bits_unpack.argtypes = [pointer, pointer, number, pointer]
    loaded.few_bits_multiply.restype = loaded.few_bits_unpack.restype = None
    return loaded


class Product:
    """x Wᵀ + b for one packed weight, whose tensors must stay where they are."""

    def __init__(self, weight: FewBits, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias
        self._compiled = library() if weight.codes.device.type == "cpu" else None
        if self._compiled is None:
            return
        tensors = (weight.codes, weight.steps, weight.odd, weight.rows)
        if not all(tensor.is_contiguous() for tensor in tensors):
            raise AssertionError("packed weights are contiguous")
        outputs, inputs = weight.shape
        addresses = [tensor.data_ptr() for tensor in tensors]
        blocks = (ctypes.c_int64 * 4)(*weight.blocks)
        own = None if bias is None else bias.data_ptr()
        self._struct = _Weight(*addresses, own, blocks, inputs, outputs, weight.group, weight.steps.shape[1])
        self._address = ctypes.addressof(self._struct)
        self._multiply, self._unpack = self._compiled.few_bits_multiply, self._compiled.few_bits_unpack
        self._inputs, self._outputs = inputs, outputs

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply fp32 rows (…, inputs), which are contiguous."""
        if self._compiled is None:
            return self._by_torch(x)
        out = x.new_empty((*x.shape[:-1], self._outputs))
        count = x.numel() // self._inputs
        threads = min(torch.get_num_threads(), 1 + x.numel() * self._outputs // _PER_THREAD)
        self._multiply(self._address, x.data_ptr(), out.data_ptr(), count, threads)
        return out

    def rows(self, places: Tensor) -> Tensor:
        """The weights of some packed rows, fp32 (row, input)."""
        if self._compiled is None:
            return unpack_rows(self.weight, places)
        places = places.contiguous()
        out = torch.empty(len(places), self.weight.shape[1])
        self._unpack(self._address, places.data_ptr(), len(places), out.data_ptr())
        return out

    def _by_torch(self, x: Tensor) -> Tensor:
        """Unpack and multiply some outputs after others: no dense copy of the whole weight is made."""
        places = self.weight.places
        step = max(LANES, _UNPACKED_AT_ONCE // self.weight.shape[1])
        out = torch.cat([F.linear(x, self.rows(part)) for part in places.split(step)], dim=-1)
        return out if self.bias is None else out + self.bias
