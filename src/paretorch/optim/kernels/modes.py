"""Which implementation steps a parameter: chosen from `foreach`, `fused` and where the parameter lies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from paretorch.errors import ConfigError
from paretorch.optim.kernels.bucket import Bucket
from paretorch.optim.kernels.compiled import CompiledBucket, library
from paretorch.optim.kernels.foreach import ForeachBucket
from paretorch.optim.kernels.leaf import Leaf, is_dense
from paretorch.optim.kernels.pieces import PieceBucket


def choose_mode(group: Mapping[str, Any], param: Tensor, name: str) -> str:
    """ "compiled" (one pass over memory on a CPU), "triton" (on a GPU), "pieces", "foreach" or "loop"."""
    foreach, fused = group["foreach"], group["fused"]
    kind = param.device.type
    if foreach is True:
        return "foreach"
    if fused is False or (fused is None and foreach is False):
        return "loop" if kind == "cpu" or foreach is False else "foreach"
    if kind == "cpu":
        return "compiled" if _compilable(group, param) else "pieces"
    narrow = param.dtype not in (torch.float64, torch.complex128) and group["state_dtype"] != torch.float64
    if kind == "cuda" and narrow and is_dense(param) and _have_triton():
        return "triton"
    if fused:
        raise ConfigError(
            f"{name}: fused=True on {kind} needs triton and dense parameters of at most 32 bits: leave fused=None."
        )
    return "foreach"


def _compilable(group: Mapping[str, Any], param: Tensor) -> bool:
    plain = param.dtype in (torch.float32, torch.float64) and group["state_dtype"] in (None, param.dtype)
    return plain and is_dense(param) and library(param.dtype) is not None


@cache
def _have_triton() -> bool:
    return find_spec("triton") is not None


def make_bucket(mode: str, leaves: list[Leaf], seed: int) -> Bucket:
    """The bucket that implements `mode`."""
    if mode == "triton":
        from paretorch.optim.kernels.triton import TritonBucket

        return TritonBucket(leaves, seed)
    if mode == "compiled":
        return CompiledBucket(leaves, seed)
    if mode == "pieces":
        return PieceBucket(leaves, seed)
    return ForeachBucket(leaves, seed, single=mode == "loop")
