"""Pieces of SVG for all charts: escaped text, ticks of axes, and the frame that screen readers announce.

Colours and fonts are left to the page's style sheet: a shape gets a class (`c0` ... `c3`, `axis`, `grid`, `label`), so that
dark mode and print are handled in one place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

WIDTH = 420  # of every chart, in user units: text of 12 units is still readable on a phone
_TINY = 1e-290  # below, differences and their logarithms underflow


def figure(ident: str, title: str, description: str, height: float, body: Iterable[str]) -> str:
    """Return an <svg> that scales with its column, with a title and a description for screen readers."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {number(height)}" role="img" aria-labelledby="{escape(ident)}-t {escape(ident)}-d">'
        f'<title id="{escape(ident)}-t">{escape(title)}</title><desc id="{escape(ident)}-d">{escape(description)}</desc>'
        + "".join(body)
        + "</svg>"
    )


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "label") -> str:
    return f'<text x="{number(x)}" y="{number(y)}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, kind: str, tip: str = "", radius: float = 2.0) -> str:
    inside = f"<title>{escape(tip)}</title>" if tip else ""
    size = f'width="{number(max(width, 0.0))}" height="{number(max(height, 0.0))}"'
    return f'<rect x="{number(x)}" y="{number(y)}" {size} rx="{number(radius)}" class="{kind}">{inside}</rect>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" class="{kind}"/>'


def path(points: Sequence[tuple[float, float]], kind: str, tip: str = "") -> str:
    if not points:
        return ""
    steps = "L".join(f"{number(x)} {number(y)}" for x, y in points)
    return f'<path d="M{steps}" class="{kind}"><title>{escape(tip)}</title></path>'


def number(value: float) -> str:
    """Return a number with at most one decimal: a tenth of a unit is invisible."""
    return f"{value:.1f}".removesuffix(".0")


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Return round numbers that cover [low, high], in steps of 1, 2 or 5 times a power of ten."""
    largest = max(abs(low), abs(high))
    if not high - low > max(1e-12 * largest, _TINY):  # equal, but for rounding
        pad = largest * 0.1 if largest > _TINY else 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def shorten(name: str, width: int) -> str:
    """Cut the middle out of a long name, because layers differ at both ends."""
    if len(name) <= width:
        return name
    tail = (width - 1) * 2 // 3
    return name[: width - 1 - tail] + "…" + name[-tail:]
