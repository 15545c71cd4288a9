"""How a step of the optimizers is computed.

All implementations compute the same update; `choose_implementation` chooses one per parameter, from `foreach`, `fused`, the device and the
dtype.

* `compiled.py`, `compiled.c`: the default on a CPU, a loop in C.
* `chunked.py`: on a CPU without a C compiler, or for other dtypes.
* `triton.py`, `triton_kernel.py`: the default on a GPU, one kernel launch.
* `foreach.py`: torch's multi-tensor operations, for any device.

They share the interface, the norm and the stochastic rounding of bf16 states in `bucket.py`, and the view of a parameter and
its state in `parameter.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from paretorch.errors import ConfigError
from paretorch.optim.kernels.bucket import Bucket
from paretorch.optim.kernels.chunked import ChunkedBucket
from paretorch.optim.kernels.compiled import CompiledBucket, library
from paretorch.optim.kernels.foreach import ForeachBucket
from paretorch.optim.kernels.parameter import ParameterView, is_dense


def choose_implementation(group: Mapping[str, Any], param: Tensor, name: str) -> str:
    """Return "compiled", "chunked", "triton", "foreach" or "loop" (foreach with one tensor at a time).

    Args:
        group: the parameter group, of which `foreach`, `fused` and `state_dtype` are read.
        param: the parameter, or its local and real view.
        name: of the optimizer, for the error if `fused=True` is not possible.
    """
    foreach, fused = group["foreach"], group["fused"]
    device = param.device.type
    if foreach is True:
        return "foreach"
    if fused is False or (fused is None and foreach is False):
        return "loop" if device == "cpu" or foreach is False else "foreach"
    if device == "cpu":
        return "compiled" if _can_be_compiled(group, param) else "chunked"
    at_most_32_bits = param.dtype not in (torch.float64, torch.complex128) and group["state_dtype"] != torch.float64
    if device == "cuda" and at_most_32_bits and is_dense(param) and _have_triton():
        return "triton"
    if fused:
        raise ConfigError(
            f"{name}: fused=True on {device} needs triton and dense parameters of at most 32 bits: leave fused=None"
        )
    return "foreach"


def make_bucket(implementation: str, views: list[ParameterView], seed: int) -> Bucket:
    """Return the bucket for a result of `choose_implementation`."""
    if implementation == "triton":
        from paretorch.optim.kernels.triton import TritonBucket

        return TritonBucket(views, seed)
    if implementation == "compiled":
        return CompiledBucket(views, seed)
    if implementation == "chunked":
        return ChunkedBucket(views, seed)
    return ForeachBucket(views, seed, single=implementation == "loop")


def _can_be_compiled(group: Mapping[str, Any], param: Tensor) -> bool:
    one_dtype = param.dtype in (torch.float32, torch.float64) and group["state_dtype"] in (None, param.dtype)
    return one_dtype and is_dense(param) and library(param.dtype) is not None


@cache
def _have_triton() -> bool:
    return find_spec("triton") is not None
