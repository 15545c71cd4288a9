"""Files that hold one SVG picture each, with its colours."""

from __future__ import annotations

from pathlib import Path

SERIES = ("#1f6feb", "#b45309", "#0f766e", "#7c3aed", "#6b7280", "#be185d")
_HEAT = ("#08306b", "#1c5ca3", "#3f8fc5", "#79b7d9", "#b3d3e8", "#d9e7f5", "#f2f6fb")
_STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#57606a}svg{background:#fff}.grid{stroke:#e4e8ec}.axis{stroke:#57606a}"
    ".line{fill:none;stroke-width:1.8;stroke-linejoin:round}.band{opacity:.15}.best{fill:#ffb000}"
    ".diverged{fill:#c9c9c9}.unknown{fill:none;stroke:#e4e8ec}"
    + "".join(f".h{i}{{fill:{colour}}}" for i, colour in enumerate(_HEAT))
    + "".join(f".s{i}{{stroke:{colour}}}.b{i},.c{i}{{fill:{colour}}}" for i, colour in enumerate(SERIES))
    + ".track{fill:#eef1f4}"
)


def save(chart: str, file: Path) -> None:
    """Write a chart as a file of its own, with its colours."""
    opening, rest = chart.split(">", 1)
    head = opening.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    file.write_text(f"{head}><style>{_STYLE}</style>{rest}\n", encoding="utf-8")
