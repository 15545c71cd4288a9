"""Layers that share tensors, as pictures and pages.

heat_map             how alike the layers are: one square per pair
folded_diagram       the folded network: the stored layers in a row, and the steps between them
write_folding        folding.html: a folded network's similarities, loops, scales and errors; also a section of report.html
write_similarities   similarities.html: how alike layers are, over the epochs of a run or over several runs
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise
from pathlib import Path

from paretorch.report.markup import WIDTH, figure, line, number, rect, shorten, table, text, write_page
from paretorch.support.files import write_file
from paretorch.support.text import human

_INDEX_WIDTH = 20.0  # of a layer's number
_ARC_HEIGHT = 22.0
_BOX_HEIGHT = 30.0  # of a layer
_NUMBER_WIDTH = 16.0  # of a layer's number in its box
_DIGIT_WIDTH = 7.0
_BEGIN, _END = '<section id="folded">', "</section><!-- folded -->"
Matrix = Sequence[Sequence[float]]
Edge = tuple[int, int]


def group_title(number: int, layers: Sequence[str]) -> str:
    """Return the title of a group of layers: its number, and its first and last layer if they have names."""
    first, last = (name.removesuffix(".weight") for name in (layers[0], layers[-1]))
    return f"Group {number}: {first} … {last}" if first != last else f"Group {number}: {len(layers)} layers"


def heat_map(ident: str, title: str, names: Sequence[str], rows: Sequence[Sequence[float]]) -> str:
    """Draw a square per pair of layers: empty for 0, full for 1."""
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
    for j in range(0, count, math.ceil(_INDEX_WIDTH / side)):
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
    """Draw the squares of many layers in twenty shades, one path per shade, which takes a fifth of the bytes."""
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
    """Return the names without the modules that all layers are in."""
    paths = [name.split(".") for name in names]
    while all(len(path) > 1 and path[0] == paths[0][0] for path in paths) and len(paths) > 1:
        paths = [path[1:] for path in paths]
    return [".".join(path) for path in paths]


def folded_diagram(ident: str, title: str, runs: Sequence[int], words: str) -> str:
    """Draw the stored layers in a row, and the steps between them.

    Steps to the next layer are straight lines. Others are arcs, numbered in their order: above the row if they go back, below
    it if they skip layers. An arc that is taken several times has several numbers.
    """
    count = max(runs)
    jumps: dict[Edge, list[int]] = {}
    for edge in pairwise(runs):
        if edge[1] != edge[0] + 1:
            jumps.setdefault(edge, []).append(1 + sum(map(len, jumps.values())))
    gap = (WIDTH - 40.0) / max(count, 1)
    wide = min(max(gap * 0.7, gap - 4.0), 54.0)
    every = math.ceil(_NUMBER_WIDTH / gap)  # number every layer if they fit, else every second, third …
    centres = [20.0 + gap * (layer - 0.5) for layer in range(count + 1)]
    back = _levels({edge: order for edge, order in jumps.items() if edge[1] <= edge[0]}, centres)
    skips = _levels({edge: order for edge, order in jumps.items() if edge[1] > edge[0]}, centres)
    end: Edge = (runs[-1], 0)
    above, below = _ports(back, centres, wide), _ports({**skips, end: 0}, centres, wide)
    top = 26.0 + _ARC_HEIGHT * max(back.values(), default=0)
    middle, foot = top + _BOX_HEIGHT / 2, top + _BOX_HEIGHT
    bottom = foot + 14 + _ARC_HEIGHT * max(skips.values(), default=0)

    body = [line(4, middle, centres[runs[0]] - wide / 2, middle, "axis")]
    body += [line(centres[i] + wide / 2, middle, centres[i + 1] - wide / 2, middle, "axis") for i in range(1, count)]
    out = below[end, 0]
    body += [line(out, foot, out, bottom, "axis"), text(out, bottom + 13, "out", "middle")]
    for i in range(1, count + 1):
        times = sum(layer == i for layer in runs)
        body.append(rect(centres[i] - wide / 2, top, wide, _BOX_HEIGHT, "track", f"layer {i} runs {times} times", 5))
        if (i - 1) % every == 0:
            body.append(text(centres[i], middle + 4, str(i), "middle"))
    labels = []
    for colour, (edge, order) in enumerate(jumps.items()):
        up = edge in back
        ports, y, turn = (
            (above, top, top - _ARC_HEIGHT * back[edge]) if up else (below, foot, foot + _ARC_HEIGHT * skips[edge])
        )
        body += _arc(ports[edge, 0], ports[edge, 1], y, turn, f"s{colour % 4}", _tip(edge, order))
        place = (ports[edge, 0] + ports[edge, 1]) / 2
        labels.append(text(place, turn - 4 if up else turn + 13, _numbers(order), "middle", "label over"))
    return figure(ident, title, f"{words}.", bottom + 18, body + labels)  # numbers last, so that no arc covers them


def _levels(jumps: dict[Edge, list[int]], centres: Sequence[float]) -> dict[Edge, int]:
    """Return the height of each arc, 1, 2 …: short arcs are low, and arcs (or their numbers) of one height do not overlap."""
    taken: dict[int, list[tuple[float, float]]] = {}
    found: dict[Edge, int] = {}
    for edge in sorted(jumps, key=lambda edge: abs(edge[1] - edge[0])):
        left, right = sorted((centres[edge[0]], centres[edge[1]]))
        margin = max(0.0, _DIGIT_WIDTH * len(_numbers(jumps[edge])) - (right - left)) / 2
        left, right = left - margin, right + margin
        level = 1
        while any(left < other[1] and other[0] < right for other in taken.get(level, ())):
            level += 1
        taken.setdefault(level, []).append((left, right))
        found[edge] = level
    return found


def _ports(levels: dict[Edge, int], centres: Sequence[float], wide: float) -> dict[tuple[Edge, int], float]:
    """Return the x of both ends of each arc at their layers, side by side.

    Arcs to the left are left, and the lowest are outermost, so that no arc crosses one that begins or ends beside it. An end at
    layer 0 is at no layer.
    """
    ends: dict[int, list[tuple[float, Edge, int]]] = {}
    for edge, level in levels.items():
        for which, layer in enumerate(edge):
            other = edge[1 - which]
            towards = 0 if not other else (other > layer) - (other < layer)
            place = towards / (1 + level) if towards else (0.0 if not other else 0.001 * (1 - 2 * which))
            ends.setdefault(layer, []).append((place, edge, which))
    found: dict[tuple[Edge, int], float] = {}
    for layer, here in ends.items():
        apart = min(9.0, (wide - 8.0) / max(len(here) - 1, 1)) if wide > 8.0 else 0.0
        for i, (_, edge, which) in enumerate(sorted(here)):
            found[edge, which] = centres[layer] + apart * (i - (len(here) - 1) / 2)
    return found


def _arc(start: float, end: float, y: float, turn: float, kind: str, tip: str) -> list[str]:
    """Draw an arc from one layer to another: up or down to `turn`, along, and back, with an arrow at its end."""
    towards = 6 if turn < y else -6
    outline = f"M{number(start)} {number(y)}V{number(turn)}H{number(end)}V{number(y)}"
    head = f"M{number(end - 4)} {number(y - towards)}L{number(end)} {number(y)}L{number(end + 4)} {number(y - towards)}"
    return [
        f'<path d="{outline}" class="line {kind}"><title>{tip}</title></path>',
        f'<path d="{head}" class="head {kind}"/>',
    ]


def _tip(edge: Edge, order: list[int]) -> str:
    return f"step {_numbers(order)}: from layer {edge[0]} to layer {edge[1]}"


def _numbers(order: list[int]) -> str:
    """Return steps as text, three or more in a row as a range: 11-14, 17."""
    parts: list[str] = []
    for _, group in groupby(enumerate(order), key=lambda one: one[1] - one[0]):
        steps = [step for _, step in group]
        parts += [f"{steps[0]}-{steps[-1]}"] if len(steps) > 2 else map(str, steps)
    return ", ".join(parts)


@dataclass(frozen=True)
class FoldedGroup:
    """How the layers of one group fold.

    Args:
        layers: Their names.
        runs: For each layer, the stored layer (1, 2 …) that runs in its place.
        scales: For each layer, the factor of the stored one.
        errors: For each layer, the error of its weight, relative to the original.
        stored: Tensors of the group in the network.
        words: The loops in words.
        similarity: The absolute cosine of each pair of layers, before folding.
    """

    layers: Sequence[str]
    runs: Sequence[int]
    scales: Sequence[float]
    errors: Sequence[float]
    stored: int
    words: str
    similarity: Matrix


def write_folding(
    path: str | os.PathLike[str],
    *,
    title: str,
    groups: Sequence[FoldedGroup],
    sizes: tuple[int, int],
) -> Path:
    """Write folding.html and return its path.

    Args:
        sizes: Bytes of the file before and after folding.
    """
    before, after = sizes
    sections = [
        f"<header><h1>{escape(title)}</h1><p>{escape(human(before))} → {escape(human(after))} on disk</p></header>"
    ]
    for index, group in enumerate(groups, 1):
        names = [name.removesuffix(".weight") for name in group.layers]
        matrix = group.similarity
        cards = [
            ("Similarity of the layers", heat_map(f"lsm-{index}", f"Similarity, group {index}", names, matrix)),
            ("Folded", folded_diagram(f"fold-{index}", f"Folded group {index}", group.runs, group.words)),
        ]
        inside = "".join(f'<div class="card"><h3>{name}</h3>{svg}</div>' for name, svg in cards)
        numbers = table(
            "Every layer: the stored layer that runs in its place, its scale, and how far its weight is from the original",
            [
                {"layer": name, "runs": run, "scale": f"{scale:.4g}", "error": f"{error:.2%}"}
                for name, run, scale, error in zip(names, group.runs, group.scales, group.errors, strict=True)
            ],
        )
        sections.append(
            f"<main><section><h2>{escape(group_title(index, names))}</h2>"
            f'<p>{escape(_sentence(group))}</p><div class="grid">{inside}</div><h2>Layers in numbers</h2>{numbers}</section></main>'
        )
    return write_page(path, title, sections)


def add_to_report(path: Path, groups: Sequence[FoldedGroup]) -> None:
    """Add the folded network to the report of its run, replacing an earlier section; do nothing if there is no report."""
    if not path.exists():
        return
    cards = [
        f'<div class="card"><h3>{escape(group_title(index, group.layers))}</h3><p>{escape(_sentence(group))}</p>'
        f"{folded_diagram(f'folded-{index}', f'Folded group {index}', group.runs, group.words)}</div>"
        for index, group in enumerate(groups, 1)
    ]
    heading = "<h2>Folded</h2><p>folded.pare, by <code>pare fold</code>; folding.html has scales and errors.</p>"
    section = f'{_BEGIN}{heading}<div class="grid">{"".join(cards)}</div>{_END}'
    page = re.sub(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", "", path.read_text("utf-8"), flags=re.DOTALL)
    before, main, after = page.rpartition("</main>")
    write_file(path, f"{before}{section}{main}{after}".encode("utf-8", "replace"))


def _sentence(group: FoldedGroup) -> str:
    count, left, stored = len(group.runs), max(group.runs), group.stored
    kept = "" if stored == left else f", mixed from {stored} that {'is' if stored == 1 else 'are'} stored"
    return f"{count} layers are {left}{kept}; {group.words}."


def write_similarities(
    path: str | os.PathLike[str],
    *,
    title: str,
    groups: Sequence[Sequence[str]],
    columns: Mapping[str, Sequence[Matrix]],
) -> Path:
    """Write similarities.html: one section per group of layers, one picture per column.

    Args:
        groups: The names of the layers of each group.
        columns: By heading (an epoch, a run), one matrix per group.
    """
    sections = [
        f"<header><h1>{escape(title)}</h1><p>The fuller a square, the more alike two layers.</p></header><main>"
    ]
    for index, (layers, *matrices) in enumerate(zip(groups, *columns.values(), strict=True), 1):
        names = [name.removesuffix(".weight") for name in layers]
        cards = []
        for position, (column, matrix) in enumerate(zip(columns, matrices, strict=True), 1):
            picture = heat_map(f"lsm-{index}-{position}", f"Similarity, group {index}, {column}", names, matrix)
            cards.append(f'<div class="card"><h3>{escape(column)}</h3>{picture}</div>')
        heading = escape(group_title(index, layers))
        sections.append(f'<section><h2>{heading}</h2><div class="grid">{"".join(cards)}</div></section>')
    return write_page(path, title, [*sections, "</main>"])
