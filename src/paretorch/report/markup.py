"""Pieces of SVG and HTML, and the pages and pictures that they become.

Text is escaped. Colours and fonts are left to the page's style sheet: a shape gets a class (`c0` ... `c3`, `axis`, `grid`, `label`), so
that dark mode and print are handled in one place. A page is self-contained: no script, no request, one style sheet, one column on a phone
and two on a desk, light and dark.
"""

from __future__ import annotations

import math
import os
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from paretorch.support.files import write_file
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


def is_number(value: Any) -> bool:
    """Return whether a value can be drawn: a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def percent(value: float) -> str:
    """Return a fraction in percent."""
    return f"{100 * value:.4g} %"


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


CSS = """
:root { color-scheme: light dark; --bg: #fbfbfa; --card: #ffffff; --ink: #1b1f24; --soft: #57606a; --rule: #d8dde3;
  --track: #eceff3; --a: #1f6feb; --b: #0f766e; --c: #b45309; --d: #6b7280; --e: #7c3aed; --f: #be185d; }
@media (prefers-color-scheme: dark) { :root { --bg: #0f1317; --card: #171c22; --ink: #e8ecf1; --soft: #a3adb9;
  --rule: #2c343d; --track: #222a33; --a: #6cb0ff; --b: #3fcfbf; --c: #f0b35a; --d: #97a3b1; --e: #b79cf7; --f: #f472b6; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main, header, footer { max-width: 77rem; margin: 0 auto; padding: 0 1rem; }
header { padding-top: 2rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .75rem; }
h3 { font-size: .95rem; margin: 0 0 .6rem; font-weight: 600; }
p { margin: .25rem 0 .75rem; color: var(--soft); max-width: 46rem; }
p, h2, h3 { overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; margin: 1.25rem 0; padding: 0; }
.tiles div, .card { background: var(--card); border: 1px solid var(--rule); border-radius: .6rem; padding: .9rem 1rem; }
.tiles dt { color: var(--soft); font-size: .8rem; }
.tiles dd { margin: .1rem 0 0; font-size: 1.45rem; font-weight: 650; font-variant-numeric: tabular-nums; line-height: 1.25; }
.tiles small { display: block; color: var(--soft); font-size: .78rem; font-weight: 400; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)); gap: 1rem; align-items: start; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--rule); border-radius: .6rem; }
.scroll:focus-visible { outline: 2px solid var(--a); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding: .7rem 1rem .3rem; font-size: .85rem; }
th, td { padding: .4rem .6rem; text-align: right; white-space: nowrap; border-top: 1px solid var(--rule); }
thead th { border-top: 0; color: var(--soft); font-weight: 600; }
th:first-child, td:first-child { text-align: left; }
tbody th { font-weight: 500; }
tfoot td, tfoot th { font-weight: 650; border-top: 2px solid var(--rule); }
figure { margin: 0; max-width: 36rem; }
figcaption { color: var(--soft); font-size: .85rem; margin-top: .6rem; }
img { display: block; width: 100%; height: auto; image-rendering: pixelated; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: var(--soft);
  font-variant-numeric: tabular-nums; }
.c0 { fill: var(--a); } .c1 { fill: var(--b); } .c2 { fill: var(--c); } .c3 { fill: var(--d); } .track { fill: var(--track); }
line.grid { stroke: var(--rule); } line.axis { stroke: var(--soft); }
line.mark { stroke: var(--soft); stroke-dasharray: 2 4; }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
svg .head { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; stroke-dasharray: none !important; }
svg text.over { paint-order: stroke; stroke: var(--card); stroke-width: 4px; stroke-linejoin: round; }
svg .s0 { stroke: var(--a); } svg .s1 { stroke: var(--c); stroke-dasharray: 7 4; }
svg .s2 { stroke: var(--b); stroke-dasharray: 2 4; } svg .s3 { stroke: var(--d); stroke-dasharray: 9 3 2 3; }
svg .s4 { stroke: var(--e); stroke-dasharray: 12 3; } svg .s5 { stroke: var(--f); stroke-dasharray: 4 2; }
@media (max-width: 40rem) { caption { position: sticky; left: 0; max-width: calc(100vw - 4rem); }
  tbody th, tfoot th, td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 8rem; } }
footer { padding: 2rem 1rem 3rem; font-size: .85rem; }
footer p { max-width: none; }
@media print { body { background: #fff; } .card { break-inside: avoid; } .scroll { overflow: visible; border: 0; }
  main, header, footer { max-width: none; } table { font-size: 7.5pt; } thead { display: table-header-group; }
  th, td { padding: .15rem .3rem; white-space: normal; overflow-wrap: anywhere; } tr { break-inside: avoid; } }
"""


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_page(path: str | os.PathLike[str], title: str, sections: Iterable[str]) -> Path:
    """Write the sections as a page, atomically, and return its path."""
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{CSS}</style></head><body>'
        + "".join(sections)
        + "</body></html>\n"
    )
    target = Path(path)
    write_file(target, page.encode("utf-8", "replace"))  # a forged name may hold a lone surrogate
    return target


SERIES = ("#1f6feb", "#b45309", "#0f766e", "#7c3aed", "#6b7280", "#be185d")
_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # control characters and lone surrogates
_HEAT = ("#08306b", "#1c5ca3", "#3f8fc5", "#79b7d9", "#a6cbe5", "#c6dcf0", "#dfeaf6")
_STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#57606a}.grid{stroke:#e4e8ec}.axis{stroke:#57606a}"
    ".line{fill:none;stroke-width:1.8;stroke-linejoin:round}.band{opacity:.15}.best{fill:#ffb000}"
    ".diverged{fill:#c9c9c9}.unknown{fill:none;stroke:#d0d7de}"
    + "".join(f".h{i}{{fill:{colour}}}" for i, colour in enumerate(_HEAT))
    + "".join(f".s{i}{{stroke:{colour}}}.b{i},.c{i}{{fill:{colour}}}" for i, colour in enumerate(SERIES))
    + ".track{fill:#eef1f4}"
)


def save(chart: str, file: Path) -> None:
    """Write a chart as an SVG file of its own, with its colours, atomically."""
    write_file(file, _standalone(chart, _STYLE, "#fff").encode())


def in_report_colours(chart: str) -> str:
    """Return a chart of a report as an SVG file of its own, in the colours of the page, light or dark."""
    css = "\n".join(line for line in CSS.splitlines() if not line.startswith(("body", "main", "table", "th", "td")))
    return _standalone(chart, css, "var(--bg)")


def _standalone(chart: str, css: str, background: str) -> str:
    """Return an <svg> with namespace, style sheet and background; characters that XML may not hold become question marks."""
    head, _, rest = _NO_XML.sub("?", chart).partition(">")
    below = f'<rect x="-4" y="-4" width="102%" height="102%" fill="{background}"/>'
    # Title and description must stay first: screen readers announce them.
    title, mark, others = rest.partition("</desc>")
    return f'{head} xmlns="http://www.w3.org/2000/svg">{title}{mark}<style>{css}</style>{below}{others}\n'


_COLOURS = {1: 0, 3: 2}  # grey, RGB


def png(pixels: Tensor) -> bytes:
    """Return bytes [channels, height, width], grey or RGB, as a PNG file (RFC 2083): one compressed block, no filter, no metadata."""
    channels, height, width = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    rows = F.pad(pixels.permute(1, 2, 0).reshape(height, -1), (1, 0))  # the byte before each row names its filter: none
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.cpu().numpy().tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
