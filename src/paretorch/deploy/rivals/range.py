"""What a narrower dtype cannot hold: as infinities, such values would be in a file without a word."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paretorch.errors import ConfigError


def require_range(state: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Refuse finite values that this dtype has none for."""
    for name, tensor in state.items():
        if not tensor.is_floating_point():
            continue
        lost = tensor.isfinite() & ~tensor.to(dtype).isfinite()
        if bool(lost.any()):
            value = float(tensor[lost][0])
            raise ConfigError(
                f"{name} has a value of {value:.3g}, which {dtype} cannot hold: write this network in torch.float32"
            )
