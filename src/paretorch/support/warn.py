"""Warnings that point at the line of the user's code that called the library."""

import sys
import warnings

from paretorch.errors import PareWarning

# Calls through `with plan.hardened():` and decorated functions pass through contextlib and torch.
_INSIDE = ("paretorch", "contextlib", "torch")


def warn(message: str, category: type[PareWarning] = PareWarning) -> None:
    """Warn at the nearest caller outside the library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
