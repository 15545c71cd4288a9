"""Marks of a scatter plot: shape and colour together, so that neither has to be told from its neighbours alone."""

from __future__ import annotations

from html import escape

from paretorch.report.svg import number

_SIZE = 5.0
# Outlines around (0, 0), in units of the size.
_SHAPES = (
    "M-1 0A1 1 0 1 0 1 0A1 1 0 1 0-1 0Z",  # circle
    "M-.9-.9H.9V.9H-.9Z",  # square
    "M0-1.25L1.25 0L0 1.25L-1.25 0Z",  # diamond
    "M0-1.15L1.1.85H-1.1Z",  # triangle
    "M0 1.15L1.1-.85H-1.1Z",  # triangle on its tip
    "M-1.1-.4H-.4V-1.1H.4V-.4H1.1V.4H.4V1.1H-.4V.4H-1.1Z",  # cross
    "M-1.2 0L-.4-.4L0-1.2L.4-.4L1.2 0L.4.4L0 1.2L-.4.4Z",  # star
    "M-1-1.1H1L.2 0L1 1.1H-1L-.2 0Z",  # hourglass
    "M-1.3-.5H1.3V.5H-1.3Z",  # bar
)


def mark(kind: int, x: float, y: float, tip: str, *, ringed: bool = False) -> str:
    """The mark of the family number `kind` at a place, with a tip to read; ringed where it is to stand out."""
    shape, colour = _SHAPES[kind % len(_SHAPES)], kind % 4
    ring = f'<circle cx="{number(x)}" cy="{number(y)}" r="9" class="line s0"/>' if ringed else ""
    place = f"translate({number(x)} {number(y)}) scale({number(_SIZE)})"
    return f'{ring}<path d="{shape}" transform="{place}" class="c{colour}"><title>{escape(tip)}</title></path>'
