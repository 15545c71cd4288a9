"""A module whose buffers have lengths that depend on the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn


class ResizableBuffers(nn.Module):
    """A module whose buffers take the shapes of the loaded ones, because their lengths depend on the weights.

    `_cached` is derived from the buffers, for speed. It is dropped when they change, and is not copied.
    """

    def __init__(self) -> None:
        super().__init__()
        self._cached: Any = None

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        self._cached = None
        for name, buffer in list(self._buffers.items()):
            loaded = state_dict.get(prefix + name)
            if buffer is not None and loaded is not None and loaded.shape != buffer.shape:
                setattr(self, name, torch.empty(loaded.shape, dtype=buffer.dtype, device=buffer.device))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._cached = None
        super()._apply(fn, recurse)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cached": None}
