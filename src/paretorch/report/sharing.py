"""Pictures of layers that share: how alike they are. Plain SVG strings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from paretorch.report.svg import WIDTH, figure, line, number, shorten, text

_LABEL = 20.0  # the room that a number needs


def group_title(number: int, layers: Sequence[str]) -> str:
    """A group of layers by its number and its first and last layer, such as those of one stage, where they have names."""
    first, last = (name.removesuffix(".weight") for name in (layers[0], layers[-1]))
    return f"Group {number}: {first} … {last}" if first != last else f"Group {number}: {len(layers)} layers"


def heat_map(ident: str, title: str, names: Sequence[str], rows: Sequence[Sequence[float]]) -> str:
    """A square for each pair of layers, the fuller the more alike: 0 is empty, 1 is full."""
    count = len(names)
    labelled = count <= 24
    left = 118.0 if labelled else 8.0
    side = (WIDTH - left - 2) / max(count, 1)
    labels = _without_prefix(names)
    body = []
    for i, row in enumerate(rows if labelled else ()):
        y = 2 + i * side
        body.append(text(left - 6, y + side / 2 + 4, f"{shorten(labels[i], 13)}  {i + 1}", "end"))
        for j, value in enumerate(row):
            tip = f"<title>{escape(names[i])}, {escape(names[j])}: {value:.3f}</title>"
            place = f'x="{number(left + j * side)}" y="{number(y)}" width="{number(side)}" height="{number(side)}"'
            body.append(f'<rect {place} class="c0" fill-opacity="{min(max(value, 0.0), 1.0):.2f}">{tip}</rect>')
    if not labelled:
        body += _small_squares(rows, left, side)
    bottom = 2 + count * side
    for j in range(0, count, math.ceil(_LABEL / side)):
        body.append(text(left + (j + 0.5) * side, bottom + 15, str(j + 1), "middle"))
    for y in (2.0, bottom):
        body.append(line(left, y, WIDTH - 2, y, "grid"))
    for x in (left, WIDTH - 2.0):
        body.append(line(x, 2, x, bottom, "grid"))
    pairs = [(rows[i][j], i, j) for i in range(count) for j in range(i)]
    best = max(pairs, default=(0.0, 0, 0))
    said = f"{count} layers; most alike are layers {best[2] + 1} and {best[1] + 1}, {best[0]:.2f}."
    return figure(ident, title, said, bottom + 20, body)


def _small_squares(rows: Sequence[Sequence[float]], left: float, side: float) -> list[str]:
    """The squares of many layers, in twenty shades, all of a shade as one path: a fifth of the bytes."""
    shades: dict[int, list[str]] = {}
    form = f"h{number(side)}v{number(side)}h-{number(side)}z"
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            shade = round(20 * min(max(value, 0.0), 1.0))
            shades.setdefault(shade, []).append(f"M{number(left + j * side)} {number(2 + i * side)}{form}")
    return [
        f'<path d="{"".join(shades[shade])}" class="c0" fill-opacity="{shade / 20:.2f}"/>'
        for shade in sorted(shades)
        if shade
    ]


def _without_prefix(names: Sequence[str]) -> list[str]:
    """What tells layers apart: names without the modules that all of them are in."""
    paths = [name.split(".") for name in names]
    while all(len(path) > 1 and path[0] == paths[0][0] for path in paths) and len(paths) > 1:
        paths = [path[1:] for path in paths]
    return [".".join(path) for path in paths]
