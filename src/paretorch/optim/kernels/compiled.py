"""The update for CPUs by the loop in `compiled.c`: one pass over memory, one call for all tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paretorch.optim.kernels import build as _build
from paretorch.optim.kernels.bucket import Bucket, Gradients
from paretorch.optim.kernels.leaf import Leaf
from paretorch.optim.kernels.norm import root_mean_square
from paretorch.optim.rule import Hyper, Scalar

CHUNK = 1 << 15
"""Elements that a thread takes at a time; short enough that their sum in fp32 is exact to six digits."""
WORTH_A_THREAD = 1 << 17
"""Elements: fewer are stepped sooner than another thread is started."""
_UPDATE, _PREVIEW, _MEASURE = range(3)
_REALS = {torch.float32: "float", torch.float64: "double"}
_CHUNKS = np.dtype([(name, np.uint64) for name in "pgmv"] + [("length", np.int64), ("squares", float), ("live", float)])


class _Numbers(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_double) for name in ("rate", "kept", "beta1", "beta2", "eps", "decay", "sign", "kappa")
    ] + [(name, ctypes.c_int64) for name in ("mode", "delayed", "normalised")]


class CompiledBucket(Bucket):
    """Steps dense fp32 or fp64 leaves whose state has the same dtype."""

    versioned = False

    def __init__(self, leaves: list[Leaf], seed: int) -> None:
        super().__init__(leaves, seed)
        self._step = library(self.work_dtype).adaptive_step
        lengths = [leaf.p.numel() for leaf in leaves]
        self._owners = np.repeat(np.arange(len(leaves)), [-(-length // CHUNK) for length in lengths])
        first = np.searchsorted(self._owners, self._owners)
        start = (np.arange(len(self._owners)) - first) * CHUNK
        self._offsets = (start * leaves[0].p.element_size()).astype(np.uint64)
        self._table = np.zeros(len(self._owners), _CHUNKS)
        self._table["length"] = np.minimum(np.array(lengths)[self._owners] - start, CHUNK)
        for name in "pmv":
            self._table[name] = self._places([getattr(leaf, name).data_ptr() for leaf in leaves])
        self._known: list[int] = []
        self._threads = 1 + sum(lengths) // WORTH_A_THREAD
        self._kappa = 1.0

    def gradients(self) -> Gradients:
        return [leaf.plain_gradient() for leaf in self.leaves]

    def stats(self) -> Tensor:
        return self._sums(self._table)

    def preview(self, grads: Gradients, hyper: Hyper) -> Tensor:
        table = self._with(grads).copy()
        table["squares"] = table["live"] = 0
        self._run(_PREVIEW, table, hyper, None)
        return self._sums(table)

    def _measure(self, hyper: Hyper) -> None:
        self._run(_MEASURE, self._table, hyper, None)

    def _update(self, grads: Gradients, hyper: Hyper, total: Tensor | None, now: Scalar) -> None:
        self._run(_UPDATE, self._with(grads), hyper, total)

    def _run(self, mode: int, table: np.ndarray[Any, Any], hyper: Hyper, total: Tensor | None) -> None:
        lr, decay, rule = float(hyper.lr), hyper.weight_decay, hyper.rule
        rate = lr / (1.0 if total is None else float(root_mean_square(total)))
        kept, decay = (1 - lr * decay, 0.0) if rule.decoupled else (1.0, decay)
        sign, self._kappa = (-1.0 if hyper.maximize else 1.0), hyper.damping
        scalars = (rate, kept, hyper.beta1, hyper.beta2, float(hyper.eps), decay, sign, self._kappa)
        numbers = _Numbers(*scalars, mode, rule.delayed, rule.normalised)
        threads = min(torch.get_num_threads(), self._threads)
        self._step(table.ctypes.data_as(ctypes.c_void_p), len(table), ctypes.byref(numbers), threads)

    def _with(self, grads: Gradients) -> np.ndarray[Any, Any]:
        addresses = [0 if g is None else g.data_ptr() for g in grads]
        if addresses != self._known:
            self._table["g"] = self._places(addresses)
            self._known = addresses
        return self._table

    def _places(self, addresses: list[int]) -> np.ndarray[Any, Any]:
        """Where each chunk begins; 0 where its tensor is none."""
        found = np.array(addresses, np.uint64)[self._owners]
        return np.where(found == 0, found, found + self._offsets)

    def _sums(self, table: np.ndarray[Any, Any]) -> Tensor:
        return torch.tensor([table["squares"].sum() / self._kappa**2, table["live"].sum()], dtype=torch.float64)


@cache
def library(dtype: torch.dtype) -> Any:
    """The compiled loop for a dtype, or None where there is none."""
    return build([f"REAL={_REALS[dtype]}"]) if dtype in _REALS else None


def build(definitions: Sequence[str]) -> Any:
    """The library of `compiled.c` with these definitions, or None."""
    found = _build.load(Path(__file__).with_suffix(".c"), definitions)
    if found is None:
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    found.adaptive_step.argtypes, found.adaptive_step.restype = [pointer, number, pointer, number], None
    return found
