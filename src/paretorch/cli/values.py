"""Values inside words of the command line."""

import json
from collections.abc import Mapping
from typing import Any

from paretorch.errors import ConfigError
from paretorch.training.images import IMAGES

DATA = (*IMAGES, "ptb", "ptb-char", "multi30k", "shortest-paths")
"""What --data takes."""

# Options that may be left out.
Text = str | None
Number = float | None
Whole = int | None


def assignments(texts: list[str] | None, example: str = "--set cutout=8") -> dict[str, Any]:
    """NAME=VALUE with the value as JSON, or as text where it is none; the example is told where there is no `=`."""
    made: dict[str, Any] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise ConfigError(f"{example.split()[0]} takes NAME=VALUE, such as {example}, not {text!r}.")
        try:
            made[name] = json.loads(value)
        except ValueError:
            made[name] = value
    return made


def given(**flags: Any) -> dict[str, Any]:
    """The options that were not left out."""
    return {name: value for name, value in flags.items() if value is not None}


def numbers(text: str, flag: str) -> list[float]:
    """'80,120' as numbers."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"{flag} takes numbers such as 80,120, not {text!r}.") from error


def integers(text: str, flag: str) -> list[int]:
    """'0,1,2' as whole numbers."""
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise ConfigError(f"{flag} takes whole numbers such as 0,1,2, not {text!r}.")
    return [int(part) for part in text.split(",")]


def go_with(partner: str, given: bool, options: Mapping[str, object]) -> None:
    """Refuse options that say something about another one which is not given: they would do nothing."""
    for flag, value in options.items():
        if value is not None and not given:
            raise ConfigError(f"{flag} is about {partner}: give that too, or leave {flag} out.")
