"""State whose shapes depend on the weights: what is loaded replaces what is there, of whatever length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn


class Adopting(nn.Module):
    """A module whose buffers take the shapes of those that are loaded into them.

    `_held` is what was made from them for speed; it is made anew after they have changed, and by every copy for itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held: Any = None

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        self._held = None
        for name, buffer in list(self._buffers.items()):
            loaded = state_dict.get(prefix + name)
            if buffer is not None and loaded is not None and loaded.shape != buffer.shape:
                setattr(self, name, torch.empty(loaded.shape, dtype=buffer.dtype, device=buffer.device))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._held = None
        super()._apply(fn, recurse)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}
