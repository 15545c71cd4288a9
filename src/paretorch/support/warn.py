"""Warnings that point at the line of the user's code that asked for what they are about, however deep it is noticed."""

import sys
import warnings

from paretorch.errors import PareWarning

# `with plan.hardened():` and decorated functions pass through the last two.
_INSIDE = ("paretorch", "contextlib", "torch")


def warn(message: str, category: type[PareWarning] = PareWarning) -> None:
    """Warn at the nearest caller outside of the library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
