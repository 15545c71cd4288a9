"""The update on a CPU by the loop in `compiled.c`: one pass over memory, one call for all tensors.

The loop is compiled at the first step, by the C compiler of the machine, and kept below $XDG_CACHE_HOME (by default
~/.cache). Without a compiler, `library` returns None and `chunked.py` does the work.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paretorch.optim.hyperparameters import Hyperparameters, Scalar
from paretorch.optim.kernels.bucket import Bucket, Gradients, root_mean_square
from paretorch.optim.kernels.parameter import ParameterView
from paretorch.support.c_code import load_library

CHUNK = 1 << 15
"""Elements that a thread takes at a time; few enough that their sum in fp32 is exact to six digits."""
ELEMENTS_PER_THREAD = 1 << 17
"""With fewer, a step takes less time than starting another thread."""
_UPDATE, _PREVIEW, _MEASURE = range(3)
_C_TYPES = {torch.float32: "float", torch.float64: "double"}
# The structs `Chunk` and `Numbers` of compiled.c.
_CHUNK_DTYPE = np.dtype(
    [(name, np.uint64) for name in "pgmv"] + [("length", np.int64), ("squares", float), ("live", float)]
)
_SOURCE = Path(__file__).with_suffix(".c")


class _Numbers(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_double) for name in ("rate", "kept", "beta1", "beta2", "eps", "decay", "sign", "kappa")
    ] + [(name, ctypes.c_int64) for name in ("mode", "delayed", "normalised")]


class CompiledBucket(Bucket):
    """Steps dense fp32 or fp64 parameters whose state has the same dtype."""

    writes_are_versioned = False

    def __init__(self, views: list[ParameterView], seed: int) -> None:
        super().__init__(views, seed)
        self._step = library(self.work_dtype).adaptive_step
        lengths = [view.p.numel() for view in views]
        # One row per chunk: `_owners` is the parameter it belongs to, `_offsets` where it begins there, in bytes.
        self._owners = np.repeat(np.arange(len(views)), [-(-length // CHUNK) for length in lengths])
        first = np.searchsorted(self._owners, self._owners)
        start = (np.arange(len(self._owners)) - first) * CHUNK
        self._offsets = (start * views[0].p.element_size()).astype(np.uint64)
        self._chunks = np.zeros(len(self._owners), _CHUNK_DTYPE)
        self._chunks["length"] = np.minimum(np.array(lengths)[self._owners] - start, CHUNK)
        for name in "pmv":
            self._chunks[name] = self._chunk_addresses([getattr(view, name).data_ptr() for view in views])
        self._gradient_addresses: list[int] = []
        self._max_threads = 1 + sum(lengths) // ELEMENTS_PER_THREAD
        self._kappa = 1.0

    def gradients(self) -> Gradients:
        return [view.native_gradient() for view in self.views]

    def eta_sums(self) -> Tensor:
        return self._add_up(self._chunks)

    def preview(self, grads: Gradients, hyper: Hyperparameters) -> Tensor:
        chunks = self._with_gradients(grads).copy()
        chunks["squares"] = chunks["live"] = 0
        self._run(_PREVIEW, chunks, hyper, None)
        return self._add_up(chunks)

    def _measure(self, hyper: Hyperparameters) -> None:
        self._run(_MEASURE, self._chunks, hyper, None)

    def _update(self, grads: Gradients, hyper: Hyperparameters, total: Tensor | None, now: Scalar) -> None:
        self._run(_UPDATE, self._with_gradients(grads), hyper, total)

    def _run(self, mode: int, chunks: np.ndarray[Any, Any], hyper: Hyperparameters, total: Tensor | None) -> None:
        lr, decay, rule = float(hyper.lr), hyper.weight_decay, hyper.rule
        rate = lr / (1.0 if total is None else float(root_mean_square(total)))
        kept, decay = (1 - lr * decay, 0.0) if rule.decoupled else (1.0, decay)
        sign, self._kappa = (-1.0 if hyper.maximize else 1.0), hyper.eta_scale
        scalars = (rate, kept, hyper.beta1, hyper.beta2, float(hyper.eps), decay, sign, self._kappa)
        numbers = _Numbers(*scalars, mode, rule.delayed, rule.normalised)
        threads = min(torch.get_num_threads(), self._max_threads)
        self._step(chunks.ctypes.data_as(ctypes.c_void_p), len(chunks), ctypes.byref(numbers), threads)

    def _with_gradients(self, grads: Gradients) -> np.ndarray[Any, Any]:
        addresses = [0 if g is None else g.data_ptr() for g in grads]
        if addresses != self._gradient_addresses:
            self._chunks["g"] = self._chunk_addresses(addresses)
            self._gradient_addresses = addresses
        return self._chunks

    def _chunk_addresses(self, addresses: list[int]) -> np.ndarray[Any, Any]:
        """Where each chunk begins; 0 if its tensor has the address 0, which stands for no gradient."""
        found = np.array(addresses, np.uint64)[self._owners]
        return np.where(found == 0, found, found + self._offsets)

    def _add_up(self, chunks: np.ndarray[Any, Any]) -> Tensor:
        return torch.tensor([chunks["squares"].sum() / self._kappa**2, chunks["live"].sum()], dtype=torch.float64)


@cache
def library(dtype: torch.dtype) -> Any:
    """The compiled loop for a dtype, or None if there is no compiler or no such loop."""
    return build([f"REAL={_C_TYPES[dtype]}"]) if dtype in _C_TYPES else None


def build(definitions: Sequence[str]) -> Any:
    """The library of `compiled.c`, compiled with these definitions or taken from the cache; None if that fails."""
    loaded = load_library(_SOURCE, definitions)
    if loaded is None:
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    loaded.adaptive_step.argtypes, loaded.adaptive_step.restype = [pointer, number, pointer, number], None
    return loaded
