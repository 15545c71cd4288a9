"""Files that hold one SVG picture each, with its colours."""

from __future__ import annotations

import re
from pathlib import Path

from paretorch.deploy.codec.container import write_file
from paretorch.report.style import CSS

SERIES = ("#1f6feb", "#b45309", "#0f766e", "#7c3aed", "#6b7280", "#be185d")
_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # control characters and half characters
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
    """Write a chart as a file of its own, with its colours, all or nothing."""
    write_file(file, alone(chart, _STYLE, "#fff").encode())


def in_report_colours(chart: str) -> str:
    """A chart of a report as a file of its own, light or dark as the reader likes it."""
    css = "\n".join(line for line in CSS.splitlines() if not line.startswith(("body", "main", "table", "th", "td")))
    return alone(chart, css, "var(--bg)")


def alone(chart: str, css: str, ground: str) -> str:
    """An <svg> with a name space, a style sheet, and a ground to stand on; what no XML may hold is a question mark in it."""
    head, _, rest = _NO_XML.sub("?", chart).partition(">")
    below = f'<rect x="-4" y="-4" width="102%" height="102%" fill="{ground}"/>'
    # The title must stay the first thing inside: that is what is read aloud.
    title, mark, others = rest.partition("</desc>")
    return f'{head} xmlns="http://www.w3.org/2000/svg">{title}{mark}<style>{css}</style>{below}{others}\n'
