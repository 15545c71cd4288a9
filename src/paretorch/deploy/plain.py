"""What may be written to a file, reported on or exported: a plain module, its compression finished."""

from __future__ import annotations

from typing import Any

from torch import nn

from paretorch.core.relaxation import PREFIX
from paretorch.errors import ConfigError


def require_plain(model: Any, who: str) -> None:
    """Refuse what is no module, and a network whose decisions are still attached: they are no part of it."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{who} takes a module, not {type(model).__name__}")
    if any(name.rpartition(".")[2] == f"{PREFIX}step" for name, _ in model.named_buffers()):
        raise ConfigError(
            f"{who} takes a finished network, and this one is still being compressed: plan.finalize() first"
        )
