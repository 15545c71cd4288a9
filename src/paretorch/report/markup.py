"""Pieces of SVG and HTML: escaped text, ticks of axes, the frame that screen readers announce, and tables with units.

Colours and fonts are left to the page's style sheet: a shape gets a class (`c0` ... `c3`, `axis`, `grid`, `label`), so that
dark mode and print are handled in one place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from paretorch.support.text import human

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


_PERCENT = ("accuracy", "sparsity", "share")
_UNITS = {"bytes": "B", "dense_bytes": "B", "macs": "", "parameters": "", "weights": ""}
_LABELS = {
    "macs": "MACs",
    "latency_ms": "latency, ms",
    "bytes": "on disk",
    "bits_on_disk": "bits on disk",
    "lr": "learning rate",
}


def label(key: str) -> str:
    """Return a key as a heading: 'test_accuracy' is 'test accuracy'."""
    return _LABELS.get(key, key.replace("_", " "))


def show(key: str, value: Any) -> str:
    """Return a value as text: fractions as percent, bytes and counts with a prefix, None as a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if key.endswith(_PERCENT):
            return f"{value:.2%}"
        if key in _UNITS:
            return human(float(value), _UNITS[key]).strip()
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return str(value)


def table(caption: str, rows: Sequence[Mapping[str, Any]], foot: Mapping[str, Any] | None = None) -> str:
    """Return an HTML table; its columns are the keys in order of appearance, the first names the row."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    head = "".join(f'<th scope="col">{escape(label(str(key)))}</th>' for key in keys)
    body = "".join(_row(keys, row) for row in rows)
    end = f"<tfoot>{_row(keys, foot)}</tfoot>" if foot else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>{end}</table></div>"
    )


def _row(keys: Sequence[str], row: Mapping[str, Any]) -> str:
    cells = [escape(show(str(key), row.get(key, ""))) for key in keys]
    return f'<tr><th scope="row">{cells[0]}</th>' + "".join(f"<td>{cell}</td>" for cell in cells[1:]) + "</tr>"
