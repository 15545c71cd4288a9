"""What can go wrong, as types, and `warn`. A message is one sentence that says what is wrong and what would be right.

Warnings point at the line of the user's code that called the library.
"""

import sys
import warnings


class PareError(Exception):
    """Base of every error that a user's mistake or a damaged input can cause.

    Example:
        >>> import torch, paretorch as pt
        >>> try:
        ...     plan = pt.compress(torch.nn.Linear(8, 8), pt.SMOL(target_bits=-1.0), steps=100)
        ... except pt.PareError as error:
        ...     print(type(error).__name__)
        ConfigError
    """

    def __str__(self) -> str:
        """The message in one line: names from a file of a stranger may hold line breaks, and codes that a terminal obeys."""
        text = super().__str__()
        return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


class ConfigError(PareError, ValueError):
    """An argument or a combination of arguments that cannot work."""


class DataError(PareError):
    """Data that is missing or damaged; the message names the folder and the command that repairs it."""


class ArtefactError(PareError):
    """A file that is not a readable artefact: cut, altered, of another version, or hostile."""


class DivergenceError(PareError, ArithmeticError):
    """A loss or gradient that is no longer finite."""


DIVERGED_CODE = 3
"""The exit code of a command that ended so: to run it again would end the same way."""


class MissingExtraError(PareError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


class PareWarning(UserWarning):
    """What a user should know, and may go on with."""


class UndecidedWarning(PareWarning):
    """Decisions were rounded before they were settled."""


class LeftOutWarning(PareWarning):
    """Most of the weights are in layers of unknown kinds, and stay as they are."""


class MissedTargetWarning(PareWarning):
    """Rounding could not meet the target."""


# Calls through `with plan.hardened():` and decorated functions pass through contextlib and torch.
_INSIDE = ("paretorch", "contextlib", "torch")


def warn(message: str, category: type[PareWarning] = PareWarning) -> None:
    """Warn at the nearest caller outside the library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
