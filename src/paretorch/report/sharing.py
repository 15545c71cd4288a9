"""Pictures of layers that share: how alike they are, and the folded network with its ways back. Plain SVG strings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from paretorch.report.svg import WIDTH, figure, line, number, rect, shorten, text

_ROW = 22.0
_LABEL = 16.0  # the room that a number needs


def group_title(number: int, layers: Sequence[str]) -> str:
    """A group of layers by its number and its first and last layer, such as those of one stage."""
    first, last = (name.removesuffix(".weight") for name in (layers[0], layers[-1]))
    return f"Group {number}: {first} … {last}"


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
    for j in range(count if labelled else 0):
        body.append(text(left + (j + 0.5) * side, bottom + 15, str(j + 1), "middle"))
    for y in (2.0, bottom):
        body.append(line(left, y, WIDTH - 2, y, "grid"))
    for x in (left, WIDTH - 2.0):
        body.append(line(x, 2, x, bottom, "grid"))
    pairs = [(rows[i][j], i, j) for i in range(count) for j in range(i)]
    best = max(pairs, default=(0.0, 0, 0))
    said = f"{count} layers; most alike are layers {best[2] + 1} and {best[1] + 1}, {best[0]:.2f}."
    return figure(ident, title, said, bottom + (20 if labelled else 4), body)


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


def folded_diagram(ident: str, title: str, runs: Sequence[int], words: str) -> str:
    """The stored layers in a row. Steps to the next layer are straight; others are arcs, numbered as they are taken:
    above those that go back, below those that leave layers out. A way that is taken again has several numbers."""
    count = max(runs)
    jumps: dict[tuple[int, int], list[int]] = {}
    for edge in pairwise(runs):
        if edge[1] != edge[0] + 1:
            jumps.setdefault(edge, []).append(1 + sum(map(len, jumps.values())))
    back = [edge for edge in jumps if edge[1] <= edge[0]]
    skips = [edge for edge in jumps if edge[1] > edge[0]]
    gap = (WIDTH - 40.0) / max(count, 1)
    wide = min(gap * 0.7, 54.0)
    every = math.ceil(_LABEL / gap)  # layers that are numbered: all, as long as there is room
    top = 26.0 + _ROW * len(back)
    middle = top + 15.0

    def x(layer: int) -> float:
        return 20.0 + gap * (layer - 0.5)

    body = [line(4, middle, x(runs[0]) - wide / 2, middle, "axis")]
    body += [line(x(i) + wide / 2, middle, x(i + 1) - wide / 2, middle, "axis") for i in range(1, count)]
    body.append(line(x(runs[-1]), top + 30, x(runs[-1]), top + 44, "axis"))
    body.append(text(x(runs[-1]), top + 57 + _ROW * len(skips), "out", "middle"))
    for i in range(1, count + 1):
        times = sum(layer == i for layer in runs)
        body.append(rect(x(i) - wide / 2, top, wide, 30, "track", f"layer {i} runs {times} times", 5))
        if (i - 1) % every == 0:
            body.append(text(x(i), middle + 4, str(i), "middle"))
    for i, (edge, order) in enumerate(jumps.items()):
        above = edge in back
        level = (back if above else skips).index(edge) + 1
        body += _arc(x(edge[0]), x(edge[1]), top if above else top + 30, level if above else -level, i, order, edge)
    return figure(ident, title, f"{words}.", top + 62 + _ROW * len(skips), body)


def _arc(
    start: float, end: float, y: float, level: int, colour: int, order: list[int], edge: tuple[int, int]
) -> list[str]:
    """A way from one layer to another: up (or down, for a negative level), along, and to an arrow at its end."""
    turn = y - _ROW * level
    room = 7 if start == end else 4
    start, end = start + room, end - room
    towards = 6 if level > 0 else -6
    kind = f"s{colour % 4}"
    way = f"M{number(start)} {number(y)}V{number(turn)}H{number(end)}V{number(y)}"
    head = f"M{number(end - 4)} {number(y - towards)}L{number(end)} {number(y)}L{number(end + 4)} {number(y - towards)}"
    steps = _numbers(order)
    tip = f"<title>step {steps}: from layer {edge[0]} to layer {edge[1]}</title>"
    return [
        f'<path d="{way}" class="line {kind}">{tip}</path>',
        f'<path d="{head}" class="line {kind}"/>',
        text((start + end) / 2, turn - 4 if level > 0 else turn + 13, steps, "middle"),
    ]


def _numbers(order: list[int]) -> str:
    if len(order) > 2 and order[-1] - order[0] == len(order) - 1:
        return f"{order[0]}-{order[-1]}"
    return ", ".join(map(str, order))
