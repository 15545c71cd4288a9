"""Pages and pictures as files: the style sheet, HTML pages, SVG pictures, PNG images.

A page is self-contained: no script, no request, one style sheet, one column on a phone and two on a desk, light and dark.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterable
from html import escape
from pathlib import Path

from torch import Tensor
from torch.nn import functional as F

from paretorch.support.files import write_file

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
