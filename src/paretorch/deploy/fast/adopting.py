"""State whose shapes depend on the weights: what is loaded replaces what is there, of whatever length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


class Adopting(nn.Module):
    """A module whose buffers take the shapes of those that are loaded into them."""

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        for name, buffer in list(self._buffers.items()):
            loaded = state_dict.get(prefix + name)
            if buffer is not None and loaded is not None and loaded.shape != buffer.shape:
                setattr(self, name, torch.empty(loaded.shape, dtype=buffer.dtype, device=buffer.device))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
