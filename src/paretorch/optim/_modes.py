"""Which implementation steps a parameter: chosen from `foreach`, `fused` and where the parameter lies."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from paretorch.errors import ConfigError
from paretorch.optim._bucket import TorchBucket
from paretorch.optim._leaf import Leaf


def choose_mode(group: Mapping[str, Any], flat: Tensor, name: str) -> str:
    """ "fused" (cache-sized pieces on a CPU), "triton" (one pass on a GPU), "foreach" or "loop"."""
    foreach, fused = group["foreach"], group["fused"]
    kind = flat.device.type
    if foreach is True:
        return "foreach"
    if fused is False or (fused is None and foreach is False):
        return "loop" if kind == "cpu" or foreach is False else "foreach"
    if kind == "cpu":
        return "fused"
    if kind == "cuda" and find_spec("triton") is not None and flat.dim() == 1:
        return "triton"
    if fused:
        raise ConfigError(f"{name}: fused=True on {kind} needs triton and dense parameters; leave fused=None.")
    return "foreach"


def make_bucket(mode: str, leaves: list[Leaf], seed: int) -> TorchBucket:
    """The bucket that implements `mode`."""
    return TorchBucket(leaves, mode, seed)
